"""Tags and a note on a run, also after it was made: they are for people, and decide nothing."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.experiment.lock import writing
from fedstill.experiment.rundir import RunDir


def annotate(path: Path, add: Iterable[str] = (), remove: Iterable[str] = (), note: str | None = None) -> list[str]:
    """Change a run's tags and note.

    Args:
        path: the run's folder; one that another process writes is refused.
        add: tags to add.
        remove: tags to take away; one that the run does not have is an error.
        note: the new note; None leaves the old one.

    Returns:
        The run's tags.
    """
    folder = RunDir.open(path)
    with writing(path):
        settings, end = folder.read("experiment.json"), folder.read("result.json")
        before, gone = list(settings.get("tag", ())), set(remove)
        for tag in gone - set(before):
            raise UsageError(f"{path}: has no tag {tag!r}; it has {', '.join(before) or 'none'}")
        tags = list(dict.fromkeys([*(tag for tag in before if tag not in gone), *add]))
        changed = {"tag": tags, "note": settings.get("note", "") if note is None else note}
        if end is not None:
            folder.write("result.json", {**end, "experiment": {**end["experiment"], **changed}})
        folder.write("experiment.json", {**settings, **changed})
    return tags


def tagged(settings: Mapping[str, Any], wanted: Iterable[str]) -> bool:
    """Does a run with these settings have all of the wanted tags?

    >>> tagged({"tag": ["paper", "final"]}, ["paper"]), tagged({}, ["paper"]), tagged({}, [])
    (True, False, True)
    """
    return set(wanted) <= set(settings.get("tag", ()))
