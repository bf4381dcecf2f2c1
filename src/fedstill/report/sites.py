"""What each site gained: how the models serve every site that has a name, beside what it reaches alone."""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean

from fedstill.experiment.metrics import Shown
from fedstill.experiment.result import Result
from fedstill.report.digest import Series
from fedstill.report.sections import cell, section, table

ALONE = "local"
"""The method whose runs say what a site reaches by itself."""


def gains(series: Sequence[Series]) -> str:
    """A table for every chapter whose clients have names, as sites do: sites down, models across; empty without any.

    Where a run of `local` on the same data is there, every number is followed by what it is above that.
    """
    out = []
    chapters = list(dict.fromkeys(line.chapter for line in series))
    for chapter in chapters:
        lines = [line for line in series if line.chapter == chapter and line.runs[0].client_names]
        if lines:
            name = f"<h3>{escape(chapter)}</h3>" if len(chapters) > 1 else ""
            out.append(name + _chapter(lines))
    if not out:
        return ""
    about = (
        "Each model on every site's own test, last round, mean over seeds. In brackets: above (or below) what the site "
        f"reaches alone, by a run of <code>{ALONE}</code> on the same data, where there is one."
    )
    return section("sites", "What each site gained", *out, about=about)


def _chapter(lines: Sequence[Series]) -> str:
    names = lines[0].runs[0].client_names
    metric = lines[0].runs[0].metric("amp")
    alone: Mapping[str, float] = {}
    for line in filter(_is_alone, lines):
        alone = _served(line.runs, line.model)
    body = []
    for name in names:
        cells = [cell(escape(name), "name")]
        for line in lines:
            served = _served(line.runs, line.model).get(name)
            cells.append(
                cell(metric.text(served) + ("" if _is_alone(line) else _gained(metric, served, alone.get(name))))
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return table(["site", *(escape(line.title) for line in lines)], body)


def _is_alone(line: Series) -> bool:
    return bool(line.runs[0].experiment["method"]["name"] == ALONE)


def _gained(metric: Shown, served: float | None, alone: float | None) -> str:
    if served is None or alone is None:
        return ""
    return f' <span class="spread">({metric.factor * (served - alone):+.{metric.digits}f})</span>'


def _served(runs: Sequence[Result], model: str) -> dict[str, float]:
    """The run's measure at every site by name, mean over the runs that tested there."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, value in zip(run.client_names, run.per_client(model), strict=False):
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}
