"""What each site gained: how the models serve every site that has a name, beside what it reaches alone."""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean

from fedstill.experiment.metrics import Shown
from fedstill.experiment.result import Result
from fedstill.report.digest import Series
from fedstill.report.sections import cell, each_chapter, section, table

ALONE = "local"
"""The method whose runs say what a site reaches by itself."""


def gains(series: Sequence[Series]) -> str:
    """A table for every chapter whose clients have names, as sites do: sites down, models across; empty without any.

    Where a run of `local` on the same data is there, every number is followed by what it is above that.
    """
    out = each_chapter(series, _chapter)
    if not out:
        return ""
    about = (
        "Each model on every site's own test, last round, mean over seeds. In brackets: above (or below) what the site "
        f"reaches alone, by a run of <code>{ALONE}</code> on the same data, where there is one."
    )
    return section("sites", "What each site gained", *out, about=about)


def _chapter(inside: Sequence[Series]) -> str:
    lines = [line for line in inside if line.runs[0].client_names]
    if not lines:
        return ""
    names = lines[0].runs[0].client_names
    metric = lines[0].runs[0].metric("amp")
    alone: Mapping[str, float] = {}
    for line in filter(is_alone, lines):
        alone = served(line.runs, line.model)
    body = []
    for name in names:
        cells = [cell(escape(name), "name")]
        for line in lines:
            value = served(line.runs, line.model).get(name)
            cells.append(cell(metric.text(value) + ("" if is_alone(line) else _gained(metric, value, alone.get(name)))))
        body.append(f"<tr>{''.join(cells)}</tr>")
    return table(["site", *(escape(line.title) for line in lines)], body)


def is_alone(line: Series) -> bool:
    """Is this every site by itself?"""
    return bool(line.runs[0].experiment["method"]["name"] == ALONE)


def _gained(metric: Shown, value: float | None, alone: float | None) -> str:
    if value is None or alone is None:
        return ""
    return f' <span class="spread">({metric.factor * (value - alone):+.{metric.digits}f})</span>'


def served(runs: Sequence[Result], model: str) -> dict[str, float]:
    """The run's measure at every site by name, mean over the runs that tested there."""
    by_site: dict[str, list[float]] = {}
    for run in runs:
        for name, value in zip(run.client_names, run.per_client(model), strict=False):
            if value is not None:
                by_site.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in by_site.items()}
