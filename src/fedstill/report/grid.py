"""A sweep on the page: where two settings vary, a map of the metric over both."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from fedstill.experiment.result import Result
from fedstill.experiment.sweep import Point
from fedstill.report import tables
from fedstill.report.digest import Series


def series(points: Sequence[Point], done: Mapping[Path, Result]) -> list[Series]:
    """A line for every point and model, named by its values."""
    found = []
    for point in points:
        runs = tuple(done[job.path] for job in point.jobs if job.path in done)
        found += [Series(str(runs[0].experiment["data"]), point.label, model, runs) for model in (runs[0].models if runs else [])]
    return found


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
        low, high = min(v["mean"] for v in means.values()), max(v["mean"] for v in means.values())
        head = "".join(f'<th scope="col">{escape(across)} = {escape(value)}</th>' for value in varied[across])
        body = ""
        for row in varied[down]:
            cells = ""
            for column in varied[across]:
                value = means.get((row, column))
                heat = 0.0 if value is None else (value["mean"] - low) / (high - low) if high > low else 1.0
                best = " class=best" if value is not None and value["mean"] == high else ""
                cells += f'<td style="--heat:{heat:.3f}"{best}>{escape(tables.cell(value, "amp"))}</td>'
            body += f'<tr><th scope="row">{escape(down)} = {escape(row)}</th>{cells}</tr>'
        out.append(
            f'<h3>AMP of {escape(model)} (%)</h3><div class="scroll"><table class="heat"><thead><tr><th></th>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )
    return f'<section id="lead"><h2>The grid</h2>{"".join(out)}</section>'
