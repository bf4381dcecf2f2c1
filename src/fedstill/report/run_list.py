"""The runs in a folder, a line each: `fedstill ls runs`."""

from collections.abc import Sequence
from pathlib import Path

from fedstill.core.errors import UsageError
from fedstill.experiment.annotate import tagged
from fedstill.experiment.result import Result
from fedstill.report.tables import WRONG, find_runs


def listing(folder: Path, tags: Sequence[str] = ()) -> list[dict[str, str]]:
    """Every run at or under a folder that has all of these tags.

    Args:
        folder: where to look.
        tags: the tags a run must have; none: every run.

    Returns:
        For each run its folder, what ran, how far it came, AMP of the model it is judged by, its tags and its note.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    rows = []
    for path in find_runs(folder):
        try:
            result = Result.read(path)
            if tagged(result.experiment, tags):
                rows.append(_line(path, result))
        except WRONG as error:
            if not tags:
                rows.append({**dict.fromkeys(_COLUMNS, ""), "run": str(path), "note": f"cannot be read ({error})"})
    if tags and not rows:
        raise UsageError(f"{folder}: no run there has the tag {' and '.join(tags)}")
    return rows


_COLUMNS = ("run", "method", "data", "seed", "rounds", "AMP", "tags", "note")


def _line(path: Path, result: Result) -> dict[str, str]:
    settings, model = result.experiment, result.principal
    rounds = f"{len(result.rows)} of {settings['rounds']}" if not result.stopped else f"{len(result.rows)}, stopped"
    values = (
        str(path),
        settings["method"]["name"],
        str(settings["data"]),
        str(settings["seed"]),
        rounds,
        result.metric("amp").text(result.last(model)["amp"]) if model else "–",
        ", ".join(settings.get("tag", ())),
        settings.get("note", ""),
    )
    return dict(zip(_COLUMNS, values, strict=True))
