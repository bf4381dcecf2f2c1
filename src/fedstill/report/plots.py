"""Pictures of a result, as matplotlib figures: what the page, notebooks and `fedstill reproduce` all draw from.

A painter takes a result and returns (title, figure) pairs, none when the run has nothing of its kind to show. It is
made known by a line in `PAINTERS`, and imported when pictures are asked for.
"""

import base64
import io
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from matplotlib.figure import Figure

from fedstill.core.errors import UsageError
from fedstill.experiment.result import Result
from fedstill.experiment.rundir import RunDir
from fedstill.report.partition import partition_figure

Pictures = list[tuple[str, Figure]]

PAINTERS = {
    "partition": "fedstill.report.plots:partition",
    "forgetting": "fedstill.report.plots:forgetting",
    "trust": "fedstill.report.trust:pictures",
    "domain": "fedstill.report.domain:pictures",
}
"""Where the painters are, by the kind of picture: `module:function`."""

_PANELS = {"amp": ("AMP (%)", 100), "fm": ("FM (10⁻³)", 1000), "wlp": ("WLP (%)", 100), "accuracy": ("global test (%)", 100)}
_COLOURS = ("#1f6fc4", "#d2521a", "#0f8f68", "#a8459b", "#c18a00", "#2b9fb8")
_INK, _GRID, _EDGE = "#1f2933", "#e4e7eb", "#9aa5b1"
LARGE = 300_000
"""Bytes of SVG above which a picture goes into the page as PNG."""


def pictures(result: Result, without: Sequence[str] = ()) -> Pictures:
    """Everything a run has to show, by all painters but those named in `without`."""
    return [picture for kind in PAINTERS if kind not in without for picture in _painter(kind)(result)]


def _painter(kind: str) -> Callable[[Result], Pictures]:
    home, _, name = PAINTERS[kind].partition(":")
    there = find_spec(home) is not None
    return getattr(import_module(home), name, _nothing) if there else _nothing


def _nothing(result: Result) -> Pictures:
    return []


def partition(result: Result) -> Pictures:
    """Who holds how much of what."""
    found = None if result.run_dir is None else RunDir(result.run_dir).read("partition.json")
    if not found:
        return []
    return [("samples of each class at each client", partition_figure(np.array(found["counts"]), found["class_names"]))]


def forgetting(result: Result) -> Pictures:
    """Accuracy on each class over the rounds, for runs that tracked it."""
    tracked = any("per_class" in scores for row in result.rows for scores in row.get("models", {}).values())
    if not tracked or find_spec("fedstill.report.forgetting") is None:
        return []
    from fedstill.report.forgetting import local_figure, rounds_figure

    found = [("accuracy on each class, over the rounds", rounds_figure(result))]
    if any("per_class_after_training" in s for row in result.rows for s in row.get("models", {}).values()):
        found.append(("accuracy on each class before and after a client's training", local_figure(result)))
    return found


def curves(result: Result, metrics: Sequence[str] = ()) -> Figure:
    """A panel for each metric, a line for each model."""
    for metric in metrics:
        if metric not in _PANELS:
            raise UsageError(f"metric = {metric!r}: must be one of {', '.join(_PANELS)}")
    shown = [m for m in metrics or _PANELS if any(v is not None for name in result.models for v in result.curve(name, m))]
    if not shown:
        raise UsageError("nothing to plot: no round was evaluated")
    figure = Figure(figsize=(3.6 * len(shown), 2.9), layout="constrained", facecolor="white")
    rounds = [row["round"] for row in result.rows if row.get("models")]
    for axes, metric in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        title, factor = _PANELS[metric]
        for model, colour in zip(result.models, _COLOURS * len(result.models), strict=False):
            values = [np.nan if v is None else factor * v for v in result.curve(model, metric)]
            axes.plot(rounds, values, color=colour, label=model, linewidth=1.8, marker="o" if len(rounds) == 1 else None)
        axes.set_title(title, fontsize=10, color=_INK, loc="left")
        axes.set_xlabel("round", fontsize=9, color=_INK)
        axes.grid(color=_GRID, linewidth=0.7)
        axes.tick_params(labelsize=8, color=_EDGE, labelcolor=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_EDGE)
    if len(result.models) > 1:
        figure.axes[0].legend(fontsize=8, frameon=False)
    return figure


def inline(figure: Figure) -> str:
    """A figure as an address that needs no network: SVG, or PNG where that would be large."""
    kind, content = "svg+xml", _bytes(figure, "svg")
    if len(content) > LARGE:
        kind, content = "png", _bytes(figure, "png")
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _bytes(figure: Figure, form: str) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format=form, dpi=130, metadata={"Date": None} if form == "svg" else None)
    return out.getvalue()
