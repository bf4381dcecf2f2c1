"""Pictures of trust (FedTKD): client features (figure 9), their clusters (figure 10), class weights (figure 16).

They are drawn from the `facts` of a run's rounds. No global state: matplotlib's `Figure` itself, never pyplot.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedstill.core.errors import UsageError
from fedstill.report.figures.style import BLUE, FAINT, GRID, INK, bare

_HONEST, _MALICIOUS = BLUE, "#c53030"
_CLUSTERS = ("o", "s")
_LINES = ("#2b6cb0", "#c05621", "#2f855a", "#c53030", "#6b46c1", "#975a16", "#b83280", "#4a5568", "#718096", "#00838f")


def features_figure(
    facts: Mapping[str, Any], malicious: Sequence[int] = (), class_names: Sequence[str] | None = None
) -> Figure:
    """Figure 9: a row for each client, a column for each class; malicious clients are red, trusted ones bold."""
    values, clients = _features(facts)
    columns = facts.get("feature_classes", range(values.shape[1]))
    names = [str(class_names[c] if class_names else c) for c in columns]
    figure = Figure(figsize=(1.8 + 0.42 * len(names), 1.3 + 0.32 * len(clients)), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(values, cmap="Blues", vmin=min(0.0, float(values.min())), vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) < 3 else 60)
    axes.set_yticks(range(len(clients)), [str(k) for k in clients])
    for label, client in zip(axes.get_yticklabels(), clients, strict=True):
        label.set_color(_MALICIOUS if client in malicious else INK)
        label.set_fontweight("bold" if client in facts.get("trusted", clients) else "normal")
    axes.set_xlabel("class", color=INK, fontsize=9)
    axes.set_ylabel("client (bold: trusted)", color=INK, fontsize=9)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    figure.colorbar(picture, ax=axes, label="cosine with the server", shrink=0.9)
    return figure


def clusters_figure(facts: Mapping[str, Any], malicious: Sequence[int] = ()) -> Figure:
    """Figure 10: clients in the plane of their features' two main directions; shape: cluster, filled: trusted."""
    values, clients = _features(facts)
    places, shown = plane(values)
    figure = Figure(figsize=(4.6, 4.0), layout="constrained")
    axes = figure.subplots()
    for (x, y), client, cluster in zip(places, clients, facts["clusters"], strict=True):
        colour = _MALICIOUS if client in malicious else _HONEST
        inside = colour if client in facts["trusted"] else "white"
        axes.scatter(x, y, marker=_CLUSTERS[max(cluster, 0)], s=60, facecolor=inside, edgecolor=colour, zorder=2)
        axes.annotate(str(client), (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8, color=FAINT)
    for label, title in ((_HONEST, "honest"), (_MALICIOUS, "malicious")):
        axes.scatter([], [], color=label, label=title)
    axes.scatter([], [], facecolor="white", edgecolor=FAINT, label="not trusted")
    axes.legend(fontsize=8, frameon=False)
    axes.set_xlabel(f"first direction ({shown[0]:.0%} of the variance)", color=INK, fontsize=9)
    axes.set_ylabel(f"second direction ({shown[1]:.0%})", color=INK, fontsize=9)
    _plain(axes)
    return figure


def weights_figure(rows: Sequence[Mapping[str, Any]], class_names: Sequence[str] | None = None) -> Figure:
    """Figure 16: the weight w_k of every class over the rounds."""
    weights = [(row["round"], row["facts"]["class_weights"]) for row in rows if "class_weights" in row.get("facts", {})]
    if not weights:
        raise UsageError("no class weights in these rounds: they are FedTKD's")
    count = len(weights[0][1])
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for c in range(count):
        name = str(class_names[c] if class_names else c)
        axes.plot(
            [t for t, _ in weights], [w[c] for _, w in weights], color=_LINES[c % len(_LINES)], lw=1.4, label=name
        )
    axes.set_xlabel("round", color=INK, fontsize=9)
    axes.set_ylabel("weight of the teacher", color=INK, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if count <= 20:
        axes.legend(fontsize=7, frameon=False, ncols=2, title="class", title_fontsize=8)
    _plain(axes)
    return figure


def plane(values: NDArray[np.floating[Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points on their two main directions (signs fixed), and the share of the variance that each direction shows.

    >>> points, shown = plane(np.array([[0.0, 0.0], [3.0, 4.0]]))
    >>> points.tolist(), shown.tolist()
    ([[-2.5, 0.0], [2.5, 0.0]], [1.0, 0.0])
    """
    centred = np.asarray(values, np.float64) - np.mean(values, axis=0)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes * np.where(axes.sum(1, keepdims=True) < 0, -1, 1)
    spread = np.zeros(2)
    spread[: min(2, len(lengths))] = (lengths**2)[:2]
    points = np.zeros((len(centred), 2))
    points[:, : min(2, len(axes))] = centred @ axes[:2].T
    tiny = 1e-9 * max(float(np.abs(points).max()), 1e-300)
    points[np.abs(points) < tiny] = 0.0
    return points, np.round(spread / max(float((lengths**2).sum()), 1e-300), 12)


def _features(facts: Mapping[str, Any]) -> tuple[NDArray[np.float64], list[int]]:
    if not facts.get("features"):
        raise UsageError("no client features in this round: they come from the gather `identify`")
    return np.asarray(facts["features"], np.float64), list(facts["answered"])


def _plain(axes: Any) -> None:
    axes.grid(color=GRID, linewidth=0.6, zorder=0)
    bare(axes)
