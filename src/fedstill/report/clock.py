"""Time to accuracy in virtual time, of runs that have a clock (`pace`): synchronous rounds beside asynchronous ones."""

from collections.abc import Sequence
from html import escape
from statistics import fmean

from fedstill.experiment.metrics import Shown
from fedstill.experiment.result import Result
from fedstill.report.digest import Series
from fedstill.report.sections import cell, each_chapter, section, table

SHARES = (0.8, 0.9, 1.0)
"""Of the AMP that all lines reach: the targets that times are given for."""


def section_of(series: Sequence[Series]) -> str:
    """A table for every chapter with runs that have a clock: models down, times across; empty without any."""
    out = each_chapter(series, _chapter)
    if not out:
        return ""
    about = (
        "Until an AMP is reached that all of these reach, and until parts of it; mean over seeds. Virtual: the unit is "
        "a turn of the median client, or what speeds are given in. Late: by how many steps replies were, on average."
    )
    return section("clock", "Virtual time", *out, about=about)


def _chapter(inside: Sequence[Series]) -> str:
    lines = [line for line in inside if all(run.time is not None for run in line.runs)]
    if not lines:
        return ""
    metric = lines[0].runs[0].metric("amp")
    goals = targets(lines, metric)
    heads = [f"to {metric.text(goal)} {escape(metric.unit)}" for goal in goals]
    body = []
    for line in lines:
        cells = [cell(escape(line.title), "name"), cell(str(max(len(run.rows) for run in line.runs)))]
        cells.append(cell(f"{fmean(lateness(run) for run in line.runs):.2f}"))
        for goal in goals:
            times = [run.time_to(line.model, "amp", goal) for run in line.runs]
            cells.append(cell(f"{fmean(time for time in times if time is not None):.1f}"))
        cells.append(cell(f"{fmean(run.time or 0.0 for run in line.runs):.1f}"))
        body.append(f"<tr>{''.join(cells)}</tr>")
    return table(["method", "steps", "late", *heads, "in all"], body)


def targets(lines: Sequence[Series], metric: Shown) -> list[float]:
    """The AMP that every run of these lines reaches, and before it parts of it where more is better."""
    best = [metric.direction * run.best(line.model)["amp"] for line in lines for run in line.runs]
    common = metric.direction * min(best)
    return [share * common for share in SHARES] if metric.direction > 0 else [common]


def lateness(run: Result) -> float:
    """By how many of the server's steps a reply was late, on average."""
    late = [steps for row in run.rows for _, steps in row["pace"]["arrived"]]
    return fmean(late) if late else 0.0
