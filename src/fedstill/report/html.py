"""The report: one page that holds its data, opens offline and asks the network for nothing."""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import fedstill
from fedstill.core.errors import FedstillError, UsageError
from fedstill.core.record import write as write_file
from fedstill.experiment.result import Result
from fedstill.report import clock, plain, privacy_page, sections, sites, tables
from fedstill.report.digest import Series, chapters, digest, series_of
from fedstill.report.figures import plots

PICTURES, PATIENCE = 16, 4.0
"""So many pictures at most, and so many seconds to begin them in: each costs time and space."""

MARK = '<meta name="generator" content="fedstill">'
"""Every page holds this, near its top: what does not is somebody else's."""
_LINKS = {
    "health": "Health",
    "lead": "",
    "summary": "Summary",
    "sites": "Sites",
    "curves": "Curves",
    "clients": "Clients",
    "speed": "Rounds",
    "traffic": "Bytes",
    "time": "Time",
    "clock": "Virtual time",
    "partition": "Partition",
    "trust": "Trust",
    "pictures": "Pictures",
    "privacy": "Privacy",
    "leaves": "What leaves",
    "runs": "Runs",
}


def report(paths: Sequence[Path], out: Path, title: str | None = None, tags: Sequence[str] = ()) -> list[str]:
    """Write the page of the runs at or under these folders.

    Args:
        paths: run folders, or folders of runs.
        out: the page.
        title: its title.
        tags: only runs that have all of these.

    Returns:
        What the reader should know: runs that were left out, and why.
    """
    results, notes = tables.runs_found(paths, tags)
    wanted = [word for tag in tags for word in ("--tag", tag)]
    command = shlex.join(["fedstill", "report", *map(str, paths), *wanted, "-o", str(out)])
    write(page(series_of(results), title=title or "Comparison of runs", notes=notes, command=command), out)
    return notes


def write(text: str, out: Path) -> None:
    """Write a page, all of it or nothing."""
    if out.is_dir():
        raise UsageError(f"{out}: is a folder; name a file, like report.html")
    if out.exists() and not is_page(out):
        raise UsageError(f"{out}: holds something that is not a page of fedstill; choose another name")
    try:
        write_file(out, text.encode())
    except OSError as error:
        raise UsageError(f"{out}: cannot write ({error.strerror or error})") from None


def is_page(file: Path) -> bool:
    """Was this file made by us? Then it may be written again."""
    head = file.read_bytes()[:4000]
    return not head or MARK.encode() in head


def page(
    series: Sequence[Series],
    *,
    title: str,
    notes: Sequence[str] = (),
    command: str = "",
    lead: str = "",
    lead_name: str = "Beside the paper",
) -> str:
    """The page of these series; `lead` is HTML that comes first, `command` makes the page again."""
    data = digest(series)
    figures, unpainted = _pictures(series)
    notes = [*notes, *_words(series), *unpainted]
    results = list({id(r): r for line in series for r in line.runs}.values())
    health = sections.health(results)
    kept = privacy_page.section_of(results)
    gained = sites.gains(series)
    timed = clock.section_of(series)
    parts = {
        "title": escape(title),
        "subtitle": escape(_subtitle(results)),
        "notes": sections.verdict(series, plain.story(series)) + sections.notes(notes),
        "health": health,
        "lead": lead,
        "summary": sections.summary(series),
        "sites": gained,
        "charts": asset("charts.html"),
        "clock": timed,
        "pictures": sections.gallery(figures),
        "privacy": kept,
        "leaves": sections.leaves(data),
        "runs": sections.runs(data, command),
        "data": json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
        "js": asset("save.js") + asset("charts.js") + asset("page.js") + asset("shell.js"),
    }
    there: dict[str, Any] = {"health": health, "lead": lead, "sites": gained, "pictures": figures, "privacy": kept}
    there |= {"trust": any("trust" in run for run in data["runs"]), "clock": timed}
    links = {target: name or lead_name for target, name in _LINKS.items() if there.get(target, True)}
    return fill(parts, links)


def fill(parts: Mapping[str, str], links: Mapping[str, str]) -> str:
    """The page's frame, filled; parts that are not given stay empty."""
    known = {
        "mark": MARK,
        "css": asset("page.css"),
        "version": fedstill.__version__,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "nav": "".join(f'<a href="#{target}">{escape(name)}</a>' for target, name in links.items()),
        "data": "{}",
        **parts,
    }
    first, *pieces = asset("page.html").split("{{")
    named = (piece.partition("}}") for piece in pieces)
    return first + "".join(known.get(name, "") + rest for name, _, rest in named)


def asset(name: str) -> str:
    """A file of the page."""
    return (resources.files("fedstill.report") / "page" / name).read_text(encoding="utf-8")


def _subtitle(results: Sequence[Result]) -> str:
    def span(values: Sequence[int]) -> str:
        low, high = min(values), max(values)
        return str(low) if low == high else f"{low}–{high}"

    def count(number: int, word: str) -> str:
        return f"{number} {word}{'s' * (number != 1)}"

    data = list(dict.fromkeys(str(r.experiment["data"]) for r in results))
    names = ", ".join(data[:4]) + (f" and {len(data) - 4} more" if len(data) > 4 else "")
    seeds = count(len({r.experiment["seed"] for r in results}), "seed")
    clients, rounds = [r.experiment["clients"] for r in results], [len(r.rows) for r in results]
    return f"{count(len(results), 'run')} on {names} · {span(clients)} clients · {span(rounds)} rounds · {seeds}"


def _words(series: Sequence[Series]) -> list[str]:
    """What makes a comparison doubtful, in words."""
    lines = []
    data = list(dict.fromkeys(str(line.runs[0].experiment["data"]) for line in series))
    by_chapter = chapters(series)
    if len(data) > 1 and list(by_chapter) == data:
        lines.append(f"Runs on different data sets ({', '.join(data)}): compared within each, never across.")
    for chapter, inside in by_chapter.items():
        if len({tuple(sorted(r.experiment["seed"] for r in line.runs)) for line in inside}) > 1:
            where = f"{chapter}: " if len(by_chapter) > 1 else ""
            lines.append(f"{where}not every method ran with the same seeds; a difference may be the seed's.")
    return lines


def _pictures(series: Sequence[Series]) -> tuple[list[tuple[str, Any]], list[str]]:
    """What a run has to show beyond numbers, from the first seed of each experiment, and what could not be painted.

    The partition is drawn by the page itself.
    """
    first: dict[int, tuple[str, Result]] = {id(line.runs[0]): (line.group, line.runs[0]) for line in series}
    pictures: list[tuple[str, Any]] = []
    wrong, left, began = [], 0, time.monotonic()
    for group, result in first.values():
        here = f"{group}, seed {result.experiment['seed']}"
        if len(pictures) >= PICTURES or time.monotonic() - began > PATIENCE:
            left += 1
            continue
        try:
            pictures += [(f"{here}: {title}", figure) for title, figure in plots.pictures(result, ("partition",))]
        except FedstillError as error:
            wrong.append(f"{here}: a picture could not be painted ({error})")
    if left and pictures:
        wrong.append(f"there are no pictures of {left} more experiments: a report of these alone has them")
    return pictures[:PICTURES], wrong
