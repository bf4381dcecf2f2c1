"""A sweep on the page: where two settings vary, a map of the metric over both."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedstill.experiment.metrics import Shown
from fedstill.experiment.result import Result
from fedstill.experiment.sweep import Point
from fedstill.report import html, sections, tables
from fedstill.report.digest import Series


def series(points: Sequence[Point], done: Mapping[Path, Result]) -> list[Series]:
    """A line for every point and model, named by its values."""
    lines = []
    for point in points:
        runs = tuple(done[job.path] for job in point.jobs if job.path in done)
        lines += [
            Series(str(runs[0].experiment["data"]), point.label, model, runs)
            for model in (runs[0].models if runs else [])
        ]
    return lines


def rows(points: Sequence[Point], done: Mapping[Path, Result]) -> list[dict[str, Any]]:
    """The comparison, a row for every point and model."""
    return [tables.summary(line.runs, line.model, line.group) for line in series(points, done)]


def page(
    points: Sequence[Point],
    done: Mapping[Path, Result],
    failed: Mapping[Path, str],
    out: Path,
    command: str,
    title: str,
    lead: tuple[str, str],
) -> Path | None:
    """Write a sweep's or a search's page.

    Args:
        points: what is compared, a line for every model of each.
        done: the finished runs, by folder.
        failed: why others failed, by folder.
        out: the page is `report.html` in this folder.
        command: what makes the page again.
        title: its title.
        lead: the name and the HTML of what comes first.

    Returns:
        The page's path; None where no run came to its end.
    """
    lines = series(points, done)
    if not lines:
        return None
    notes = [f"{path}: {reason}" for path, reason in failed.items()]
    text = html.page(lines, title=title, notes=notes, command=command, lead=lead[1], lead_name=lead[0])
    html.write(text, out / "report.html")
    return out / "report.html"


def section(points: Sequence[Point], varied: Mapping[str, Sequence[str]], done: Mapping[Path, Result]) -> str:
    """AMP over the first two settings that vary, for every model; nothing where only one does."""
    names = [name for name, values in varied.items() if len(values) > 1]
    if len(names) != 2:
        return ""
    down, across = names
    out = []
    models = dict.fromkeys(model for result in done.values() for model in result.models)
    for model in models:
        means = {}
        for point in points:
            runs = [done[job.path] for job in point.jobs if job.path in done]
            value = tables.spread([r.last(model).get("amp") for r in runs if model in r.models])
            if value is not None:
                means[point.values[down], point.values[across]] = value
        amp = next(iter(done.values())).metric("amp")
        levels = [amp.direction * value["mean"] for value in means.values()]
        head = ["", *(f"{escape(across)} = {escape(value)}" for value in varied[across])]
        body = []
        for row in varied[down]:
            cells = "".join(_cell(means.get((row, column)), amp, levels) for column in varied[across])
            body.append(f'<tr><th scope="row">{escape(down)} = {escape(row)}</th>{cells}</tr>')
        title = f"{amp.title} of {model} ({amp.unit})"
        out.append(f"<h3>{escape(title)}</h3>" + sections.table(head, body, kind="heat"))
    return sections.section("lead", "The grid", *out)


def _cell(value: Mapping[str, float] | None, metric: Shown, levels: Sequence[float]) -> str:
    """A number on a ground that is the stronger the better it is."""
    if value is None:
        return "<td>–</td>"
    low, high, level = min(levels), max(levels), metric.direction * value["mean"]
    heat = (level - low) / (high - low) if high > low else 1.0
    best = " class=best" if level == high else ""
    return f'<td style="--heat:{heat:.3f}"{best}>{escape(tables.cell(value, metric))}</td>'
