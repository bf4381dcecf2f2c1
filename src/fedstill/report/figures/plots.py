"""Pictures of a result, as matplotlib figures: what the page, notebooks and `fedstill reproduce` all draw from.

A painter takes a result and returns (title, figure) pairs, none when the run has nothing of its kind to show. It is
made known by a line in `PAINTERS`.
"""

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind, kind_of
from fedstill.data.kinds import Series, Table
from fedstill.experiment.config import plan_without_data
from fedstill.experiment.gallery import REAL, read_gallery
from fedstill.experiment.result import Result, views
from fedstill.report.figures.domain import pictures as domain
from fedstill.report.figures.forgetting import local_figure, rounds_figure
from fedstill.report.figures.imagined import rows_figure, series_figure
from fedstill.report.figures.partition import partition_figure
from fedstill.report.figures.style import EDGE, GRID, INK
from fedstill.report.figures.trust import clusters_figure, features_figure, weights_figure

Pictures = list[tuple[str, Figure]]

_COLOURS = ("#1f6fc4", "#d2521a", "#0f8f68", "#a8459b", "#c18a00", "#2b9fb8")
LARGE = 300_000
"""Bytes of SVG above which a picture goes into the page as PNG."""


def pictures(result: Result, without: Sequence[str] = ()) -> Pictures:
    """Everything a run has to show, by all painters but those named in `without`."""
    painters = [painter for kind, painter in PAINTERS.items() if kind not in without]
    return [picture for painter in painters for picture in painter(result)]


def partition(result: Result) -> Pictures:
    """Who holds how much of what."""
    split = result.file("partition.json")
    if not split:
        return []
    return [("samples of each class at each client", partition_figure(np.array(split["counts"]), split["class_names"]))]


def forgetting(result: Result) -> Pictures:
    """Accuracy on each class over the rounds, for runs that tracked it."""
    tracked = any("per_class" in scores for row in result.rows for scores in row.get("models", {}).values())
    if not tracked:
        return []
    pictures = [("accuracy on each class, over the rounds", rounds_figure(result))]
    trained = any("per_class_after_training" in s for row in result.rows for s in row.get("models", {}).values())
    if trained and result.experiment.get("evaluate_every", 1) == 1:  # before and after need two rounds in a row
        pictures.append(("accuracy on each class before and after a client's training", local_figure(result)))
    return pictures


def trust(result: Result) -> Pictures:
    """Client features, their clusters and the class weights, for runs that tell whom they trusted."""
    malicious, names = malicious_clients(result), (result.file("partition.json") or {}).get("class_names")
    pictures: Pictures = []
    rows = [row for row in result.rows if row.get("facts", {}).get("features")]
    if rows:
        when, facts = rows[-1]["round"], rows[-1]["facts"]
        pictures.append((f"client features in round {when}", features_figure(facts, malicious, names)))
        pictures.append((f"clusters of clients in round {when}", clusters_figure(facts, malicious)))
    if any("class_weights" in row.get("facts", {}) for row in result.rows):
        pictures.append(("weight of each class over the rounds", weights_figure(result.rows, names)))
    return pictures


def imagined(result: Result) -> Pictures:
    """What the clients' own generators imagine, as the run kept it."""
    kept = {} if result.run_dir is None else read_gallery(result.run_dir)
    pictures = []
    kind = _kind(result) if kept else None
    real = kept.pop(REAL, None)
    for who, samples in kept.items():
        match kind:
            case Series():
                figure = series_figure(kind, samples, real)
            case Table():
                figure = rows_figure(kind, samples, real)
            case _ if samples.ndim == 4:
                figure = images_figure(samples / 255, [""] * len(samples))
            case _:
                continue
        pictures.append((f"imagined by {who}", figure))
    return pictures


def _kind(result: Result) -> Kind | None:
    """The kind of the run's data; None for runs that were written before runs said so."""
    signature = result.file("signature.json")
    return None if signature is None else kind_of(signature["kind"])


def malicious_clients(result: Result) -> list[int]:
    """Who was malicious, by the run's settings; nobody where its method is not known here."""
    plan = plan_without_data(result.experiment) if result.experiment.get("malicious") else None
    return [] if plan is None else list(plan.malicious_clients)


PAINTERS: dict[str, Callable[[Result], Pictures]] = {
    "partition": partition,
    "forgetting": forgetting,
    "trust": trust,
    "domain": domain,
    "imagined": imagined,
}
"""The painters, by the kind of picture."""


@views.register("curves")
def curves(result: Result, metrics: Sequence[str] = ()) -> Figure:
    """A panel for each metric, a line for each model."""
    wanted = [result.metric(key) for key in metrics] or result.metrics
    shown = [metric for metric in wanted if _known(result, metric.key)]
    if not shown:
        raise UsageError("nothing to plot: no round was evaluated")
    figure = Figure(figsize=(3.6 * len(shown), 2.9), layout="constrained", facecolor="white")
    rounds = [row["round"] for row in result.rows if row.get("models")]
    for axes, metric in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for model, colour in zip(result.models, _COLOURS * len(result.models), strict=False):
            values = [np.nan if v is None else metric.factor * v for v in result.curve(model, metric.key)]
            axes.plot(
                rounds, values, color=colour, label=model, linewidth=1.8, marker="o" if len(rounds) == 1 else None
            )
        axes.set_title(metric.heading, fontsize=10, color=INK, loc="left")
        axes.set_xlabel("round", fontsize=9, color=INK)
        axes.grid(color=GRID, linewidth=0.7)
        axes.tick_params(labelsize=8, color=EDGE, labelcolor=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(EDGE)
    if len(result.models) > 1:
        figure.axes[0].legend(fontsize=8, frameon=False)
    return figure


def _known(result: Result, metric: str) -> bool:
    """Has any model a value of this metric?"""
    return any(value is not None for model in result.models for value in result.curve(model, metric))


def images_figure(images: NDArray[np.floating[Any]], names: Sequence[str], across: int = 13) -> Figure:
    """Images (N × channels × height × width, from 0 to 1) with their names, in lines."""
    lines = -(-len(images) // across)
    figure = Figure(
        figsize=(0.62 * min(across, len(images)) + 0.2, 0.82 * lines), layout="constrained", facecolor="white"
    )
    places = figure.subplots(lines, min(across, len(images)), squeeze=False).ravel()
    for axes in places:
        axes.set_axis_off()
    for axes, image, name in zip(places, images, names, strict=False):
        shown = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(str(name), fontsize=8, color=INK, pad=2)
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
