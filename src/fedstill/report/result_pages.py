"""Tables in pages of documentation, made from records: between two markers nothing is typed by hand.

    <!-- results table fedkf/table5 columns="α = 0.1" rounds=100 -->
    …                                     written by `fedstill results pages`
    <!-- end of results -->

A marker names what stands there: `table`, `grid` (one metric, rows by columns), `claims` or `verdict` (one line on the
claims) of a preset, for chosen rows and columns (`rows="a|b*"`) and at a round, or `leaderboard`. Rows choose claims by
their left sides, columns the cells of a claim that its verdict then rests on.
"""

import glob
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedstill.core.errors import UsageError, unknown
from fedstill.experiment import leaderboard as boards
from fedstill.experiment.archive import Archive
from fedstill.experiment.claims import claims, narrowed
from fedstill.experiment.judging import Judgement, judged
from fedstill.experiment.presets import Preset, read_preset
from fedstill.experiment.reproduce import NO_TIME, RECORDED_SEEDS, Number, numbers, plan, recorded
from fedstill.experiment.table_metrics import described
from fedstill.report import claims as claim_tables
from fedstill.report import leaderboard, paper_table

OPTIONS = ("rows", "columns", "rounds", "metric")
_BLOCK = re.compile(
    r"(^<!-- results (?P<words>[^\n]*?) -->\n)(?P<text>.*?)(^<!-- end of results -->)", re.DOTALL | re.M
)


def remade(text: str, archive: Archive) -> str:
    """A page's text with everything between its markers made anew from the records."""

    def block(marker: re.Match[str]) -> str:
        return f"{marker[1]}{made(marker['words'], archive)}\n{marker[4]}"

    if len(re.findall("^<!-- results ", text, re.M)) != len(_BLOCK.findall(text)):
        raise UsageError("a marker `<!-- results … -->` has no `<!-- end of results -->`")
    return _BLOCK.sub(block, text)


def made(words: str, archive: Archive) -> str:
    """What a marker asks for, as Markdown."""
    try:
        kind, *rest = shlex.split(words)
    except ValueError as error:  # an open quote, or no word at all
        raise UsageError(f"results marker {words!r}: {error if words.strip() else 'names nothing'}") from None
    makers: dict[str, Callable[[Preset, Mapping[str, str], Archive], str]] = {
        "table": _table,
        "grid": _grid,
        "claims": _claims,
        "verdict": _verdict,
        "leaderboard": _leaderboard,
    }
    if kind not in makers:
        raise unknown("kind of results", kind, makers)
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    names = [word for word in rest if "=" not in word] or ["leaderboard/board"]
    for name in options:
        if name not in OPTIONS:
            raise unknown("option of a results marker", name, OPTIONS)
    return makers[kind](read_preset(names[0]), options, archive)


@dataclass(frozen=True)
class Choice:
    """What is shown of a preset: rows and columns by label (none named: all), a round, seeds to look for, the size."""

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    rounds: int | None = None
    seeds: int = RECORDED_SEEDS
    full: bool = False


def table_numbers(preset: Preset, archive: Archive, choice: Choice) -> list[Number]:
    """The numbers of the rows and columns that are chosen, from the records alone."""
    planned = partial(plan, preset, Path("."), rounds=choice.rounds, full=choice.full, columns=choice.columns)
    shown = {entry.cell.row for entry in planned(rows=choice.rows)}
    yardsticks = {cell.row for cell in preset.cells(choice.full) if cell.yardstick}  # they may not be shown
    wanted = [glob.escape(row) for row in sorted(shown | yardsticks)]
    entries = planned(seeds=choice.seeds, rows=wanted)
    return [number for number in numbers(*recorded(entries, archive), {}) if number.row in shown]


def judgements(preset: Preset, archive: Archive, choice: Choice) -> list[Judgement]:
    """What the preset claims of the rows and columns that are chosen, with verdicts from the records alone."""
    wanted = narrowed(claims(preset.name, preset.content), choice.rows, choice.columns)
    if not wanted:
        return []
    sides = sorted({glob.escape(row) for claim in wanted for row in claim.left + claim.right})
    where = sorted({glob.escape(column) for claim in wanted for column in claim.columns})
    return judged(wanted, table_numbers(preset, archive, replace(choice, rows=sides, columns=where)))


def _chosen(options: Mapping[str, str]) -> Choice:
    rows, columns = ([name for name in options.get(key, "").split("|") if name] for key in ("rows", "columns"))
    rounds = options.get("rounds")
    if rounds is not None and not (rounds.isdecimal() and int(rounds)):
        raise UsageError(f"results marker: rounds = {rounds!r}: must be a whole number ≥ 1")
    return Choice(rows, columns, None if rounds is None else int(rounds))


def _table(preset: Preset, options: Mapping[str, str], archive: Archive) -> str:
    every = table_numbers(preset, archive, _chosen(options))
    out = []
    for column in dict.fromkeys(number.column for number in every):
        inside = [number for number in every if number.column == column]
        there = list(dict.fromkeys(n.row for n in inside if n.ours))
        if there:
            missing = {n.row: n.state for n in inside if n.row not in there}
            out.append(_column(preset, column, [n for n in inside if n.row in there], missing))
    return "\n\n".join(out) or f"No record of {preset.name} yet."


def _column(preset: Preset, column: str, inside: Sequence[Number], missing: Mapping[str, str]) -> str:
    metrics = list(dict.fromkeys(n.metric for n in inside))
    compared = {n.metric for n in inside if n.paper is not None}  # the paper prints no number of the others
    head = [""]
    for metric in metrics:
        head += [described(metric).heading, *(["paper"] if metric in compared else [])]
    head.append("seeds")
    lines = [f"{preset.title}; {column}", "", claim_tables.markdown_line(head), "|" + "---|" * len(head)]
    for row in dict.fromkeys(n.row for n in inside):
        cells = {n.metric: n for n in inside if n.row == row}
        values = []
        for metric in metrics:
            values.append(paper_table.ours(cells[metric]))
            if metric in compared:
                values.append(paper_table.theirs(cells[metric]))
        seeds = str(max(len(number.ours) for number in cells.values()))
        lines.append(claim_tables.markdown_line([row, *values, seeds]))
    untimed = [row for row, state in missing.items() if state == NO_TIME]
    for words, rows in (
        ("Not run yet", [row for row in missing if row not in untimed]),
        ("No undisturbed time", untimed),
    ):
        if rows:
            lines += ["", f"{words}: {'; '.join(rows)}."]
    return "\n".join(lines)


def _grid(preset: Preset, options: Mapping[str, str], archive: Archive) -> str:
    """Rows by columns, of one metric (the preset's first, where none is named); what has no record is a dash."""
    metric = options.get("metric", preset.content["metrics"][0])
    every = [n for n in table_numbers(preset, archive, _chosen(options)) if n.metric == metric]
    if not any(n.ours for n in every):
        return f"No record of {preset.name} yet."
    columns = list(dict.fromkeys(n.column for n in every))
    seeds = sorted({len(n.ours) for n in every if n.ours})
    head = (
        f"{preset.title}; {described(metric).heading}, {'–'.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} "
        f"seed{'s' * (seeds[-1] > 1)}"
    )
    lines = [head, "", claim_tables.markdown_line(["", *columns]), "|" + "---|" * (len(columns) + 1)]
    cells = {(n.row, n.column): paper_table.ours(n) for n in every if n.ours}
    for row in dict.fromkeys(n.row for n in every):
        lines.append(claim_tables.markdown_line([row, *(cells.get((row, column), "–") for column in columns)]))
    return "\n".join(lines)


def _judged(preset: Preset, options: Mapping[str, str], archive: Archive) -> list[Judgement]:
    """What a marker asks for must be claimed: a page has no empty tables."""
    choice = _chosen(options)
    found = judgements(preset, archive, choice)
    if not found:
        raise UsageError(f"{preset.name}: makes no claim of {', '.join(choice.rows) or 'anything'}")
    return found


def _claims(preset: Preset, options: Mapping[str, str], archive: Archive) -> str:
    return claim_tables.markdown(_judged(preset, options, archive))


def _verdict(preset: Preset, options: Mapping[str, str], archive: Archive) -> str:
    return claim_tables.sentence(_judged(preset, options, archive))


def _leaderboard(preset: Preset, options: Mapping[str, str], archive: Archive) -> str:
    return leaderboard.markdown(preset, boards.leagues(preset, archive))


def _remade(page: Path, archive: Archive) -> str:
    try:
        return remade(page.read_text(encoding="utf-8"), archive)
    except UsageError as error:
        raise UsageError(f"{page}: {error}") from None


def stale(pages: Sequence[Path], archive: Archive) -> list[Path]:
    """The pages that do not say what the records say."""
    return [page for page in pages if page.read_text(encoding="utf-8") != _remade(page, archive)]


def write(pages: Sequence[Path], archive: Archive) -> list[Path]:
    """Make the tables of these pages anew; returns the pages that changed."""
    changed = stale(pages, archive)
    for page in changed:
        page.write_text(_remade(page, archive), encoding="utf-8")
    return changed
