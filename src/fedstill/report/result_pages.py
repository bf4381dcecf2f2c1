"""Tables in pages of documentation, made from records: between two markers nothing is typed by hand.

    <!-- results table fedkf/table5 columns="α = 0.1" rounds=100 -->
    …                                     written by `fedstill results pages`
    <!-- end of results -->

A marker names what stands there: `table` or `claims` of a preset, for chosen columns and at a round, or `leaderboard`.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedstill.core.errors import UsageError, unknown
from fedstill.experiment import leaderboard as boards
from fedstill.experiment.claims import claims, judged
from fedstill.experiment.presets import Preset, read_preset
from fedstill.experiment.records import Archive
from fedstill.experiment.reproduce import Number, numbers, plan, recorded
from fedstill.experiment.table_metrics import described
from fedstill.report import claims as claim_tables
from fedstill.report import leaderboard, paper_table

SEEDS = 3
_BLOCK = re.compile(
    r"(^<!-- results (?P<words>[^\n]*?) -->\n)(?P<text>.*?)(^<!-- end of results -->)", re.DOTALL | re.M
)


def remade(text: str, archive: Archive) -> str:
    """A page's text with everything between its markers made anew from the records."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}{made(found['words'], archive)}\n{found[4]}"

    if len(re.findall("^<!-- results ", text, re.M)) != len(_BLOCK.findall(text)):
        raise UsageError("a marker `<!-- results … -->` has no `<!-- end of results -->`")
    return _BLOCK.sub(block, text)


def made(words: str, archive: Archive) -> str:
    """What a marker asks for, as Markdown."""
    kind, *rest = shlex.split(words)
    makers: dict[str, Callable[[Preset, Mapping[str, str], Archive], str]] = {
        "table": _table,
        "claims": _claims,
        "leaderboard": _leaderboard,
    }
    if kind not in makers:
        raise unknown("kind of results", kind, makers)
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    names = [word for word in rest if "=" not in word] or ["leaderboard/board"]
    for name in options:
        if name not in ("columns", "rounds"):
            raise unknown("option of a results marker", name, ("columns", "rounds"))
    return makers[kind](read_preset(names[0]), options, archive)


def table_numbers(preset: Preset, archive: Archive, columns: Sequence[str], rounds: int | None) -> list[Number]:
    """A preset's numbers from the records alone, with all seeds there are."""
    entries = plan(preset, Path("."), seeds=SEEDS, rounds=rounds, columns=columns)
    return numbers(*recorded(entries, archive), {})


def _chosen(options: Mapping[str, str]) -> tuple[list[str], int | None]:
    columns = [name for name in options.get("columns", "").split("|") if name]
    return columns, int(options["rounds"]) if "rounds" in options else None


def _table(preset: Preset, options: Mapping[str, str], archive: Archive) -> str:
    found = table_numbers(preset, archive, *_chosen(options))
    out = []
    for column in dict.fromkeys(number.column for number in found):
        inside = [number for number in found if number.column == column]
        there = list(dict.fromkeys(n.row for n in inside if n.ours))
        missing = list(dict.fromkeys(n.row for n in inside if not n.ours))
        if there:
            out.append(_column(preset, column, [n for n in inside if n.row in there], missing))
    return "\n\n".join(out) or f"No record of {preset.name} yet."


def _column(preset: Preset, column: str, inside: Sequence[Number], missing: Sequence[str]) -> str:
    metrics = list(dict.fromkeys(n.metric for n in inside))
    compared = any(n.paper is not None for n in inside)  # a table of our own has no paper's numbers to show
    head = [""]
    for metric in metrics:
        head += [described(metric).heading, *(["paper"] if compared else [])]
    head.append("seeds")
    lines = [f"{preset.title}; {column}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in dict.fromkeys(n.row for n in inside):
        cells = {n.metric: n for n in inside if n.row == row}
        values = []
        for metric in metrics:
            values += [paper_table.ours(cells[metric]), *([paper_table.theirs(cells[metric])] if compared else [])]
        seeds = str(len(next(iter(cells.values())).ours))
        lines.append("| " + " | ".join([row, *values, seeds]) + " |")
    if missing:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    return "\n".join(lines)


def _claims(preset: Preset, options: Mapping[str, str], archive: Archive) -> str:
    found = table_numbers(preset, archive, *_chosen({k: v for k, v in options.items() if k == "rounds"}))
    return claim_tables.markdown(judged(claims(preset.name, preset.content), found))


def _leaderboard(preset: Preset, options: Mapping[str, str], archive: Archive) -> str:
    return leaderboard.markdown(boards.leagues(preset, archive, SEEDS))


def stale(pages: Sequence[Path], archive: Archive) -> list[Path]:
    """The pages that do not say what the records say."""
    return [page for page in pages if (text := page.read_text(encoding="utf-8")) != remade(text, archive)]


def write(pages: Sequence[Path], archive: Archive) -> list[Path]:
    """Make the tables of these pages anew; returns the pages that changed."""
    changed = stale(pages, archive)
    for page in changed:
        page.write_text(remade(page.read_text(encoding="utf-8"), archive), encoding="utf-8")
    return changed
