"""Pictures of DaFKD: what its generator made over the rounds, and whether the discriminators know their domain.

No global state: matplotlib's `Figure` itself, never pyplot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

import fedstill.methods  # noqa: F401 (a checkpoint is read by their records)
from fedstill.core.errors import UsageError
from fedstill.core.value import by_field
from fedstill.experiment.result import Result
from fedstill.experiment.rundir import RunDir
from fedstill.report.figures.style import BLUE, FAINT, GRID, INK, bare


def pictures(result: Result) -> list[tuple[str, Figure]]:
    """Generated samples and what the discriminators know, for runs that tell of domain weights."""
    if not any(name.startswith("domain") for row in result.rows for name in row.get("facts", {})):
        return []  # no checkpoint is opened for nothing
    figures: list[tuple[str, Figure]] = []
    split = result.file("partition.json")
    rows = [row for row in result.rows if row.get("facts", {}).get("domain_weights")]
    if rows and split:
        last = rows[-1]
        figure = weights_figure(last["facts"], np.array(split["counts"]), split["class_names"])
        figures.append((f"weights α̂ against label shares, round {last['round']}", figure))
    if any(row["facts"].get("domain_correlation") is not None for row in rows):
        figures.append(("do the discriminators know their domain?", correlation_figure(rows)))
    checkpoint = None if result.run_dir is None else RunDir.open(result.run_dir).latest()[0]
    server = None if checkpoint is None else checkpoint.server
    gallery = by_field(server).get("gallery") if is_dataclass(server) else None
    if gallery and np.asarray(next(iter(gallery.values()))).ndim == 4:  # only images are drawn here
        figures.append(("generated samples over the rounds", samples_figure(gallery)))
    return figures


def samples_figure(gallery: Mapping[int, ArrayLike]) -> Figure:
    """A row for each round, a column for each noise: images as bytes, N × channels × height × width."""
    if not gallery:
        raise UsageError("an empty gallery: no round has ended yet")
    rows = {number: np.asarray(gallery[number]).transpose(0, 2, 3, 1) for number in sorted(gallery)}
    shown = max(map(len, rows.values()))
    figure = Figure(figsize=(0.62 * shown + 0.7, 0.62 * len(rows) + 0.4), layout="constrained", facecolor="white")
    places = figure.subplots(len(rows), shown, squeeze=False)
    for line, (number, images) in zip(places, rows.items(), strict=True):
        for axes in line:
            axes.set_axis_off()
        for axes, image in zip(line, images, strict=False):
            axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
        line[0].text(-0.12, 0.5, str(number), transform=line[0].transAxes, ha="right", va="center", fontsize=8)
    places[0][0].text(-0.12, 1.15, "round", transform=places[0][0].transAxes, ha="right", fontsize=8, color=FAINT)
    return figure


def weights_figure(facts: Mapping[str, Any], counts: NDArray[Any], class_names: Sequence[str]) -> Figure:
    """Side by side, client × class: the mean α̂ on generated samples of a class, and its share of the client's own.

    A grey column is a class of which no sample was made.
    """
    clients = sorted(facts["domain_weights"], key=int)
    weights = np.array([facts["domain_weights"][k] for k in clients], float)
    weights[:, np.array(facts["made"]) == 0] = np.nan
    held = counts[[int(k) for k in clients]]
    shares = held / np.maximum(held.sum(1, keepdims=True), 1)
    size = (2.6 + 0.62 * len(class_names), 1.6 + 0.3 * len(clients))
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, sharey=True)
    _heat(figure, left, weights, class_names, "mean α̂ on generated samples", 0.0, None)
    _heat(figure, right, shares, class_names, "share of the client's own samples", 0.0, 1.0)
    left.set_yticks(range(len(clients)), clients)
    left.set_ylabel("client", color=INK, fontsize=9)
    return figure


def _heat(
    figure: Figure, axes: Axes, values: NDArray[Any], names: Sequence[str], title: str, low: float, high: float | None
) -> None:
    picture = axes.imshow(values, cmap="Blues", vmin=low, vmax=high, aspect="auto")
    axes.set_facecolor(GRID)
    axes.set_title(title, fontsize=9, color=INK, loc="left")
    axes.set_xticks(
        range(len(names)), [str(n) for n in names], rotation=60 if max(map(len, map(str, names))) > 2 else 0
    )
    bare(axes)
    figure.colorbar(picture, ax=axes, shrink=0.9).ax.tick_params(labelsize=7)


def correlation_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Over the rounds: the correlation of α̂ with the label shares, 0 where the discriminators know nothing."""
    known = [(row["round"], row["facts"].get("domain_correlation")) for row in rows]
    points = [(t, value) for t, value in known if value is not None]
    if not points:
        raise UsageError("no round tells how α̂ and the label shares correlate")
    figure = Figure(figsize=(4.6, 2.7), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.plot(*zip(*points, strict=True), color=BLUE, linewidth=1.8, marker="o", markersize=3)
    axes.set_ylim(-1, 1)
    axes.set_xlabel("round", color=INK, fontsize=9)
    axes.set_ylabel("correlation of α̂ with label shares", color=INK, fontsize=9)
    axes.grid(color=GRID, linewidth=0.7)
    axes.tick_params(labelsize=8, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
