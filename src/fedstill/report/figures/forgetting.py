"""What a global model forgets, class by class (FedRAD, figure 3), from runs made with `--track per-class`.

(a) `local_figure`: what a client holds, and the accuracy on each class before and after its local training. (b)
`rounds_figure`: the global model's accuracy on each class over the rounds. Each takes one result, or several by label
(IID beside non-IID). No global state: matplotlib's `Figure` itself, never pyplot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedstill.core.errors import UsageError, unknown
from fedstill.experiment.result import Result
from fedstill.report.figures.style import INK, bare

_SHADES = LinearSegmentedColormap.from_list("accuracy", ["#f5f7fa", "#9ec5e8", "#2b6cb0", "#173f6b"])
_GREYS = LinearSegmentedColormap.from_list("samples", ["#f5f7fa", "#52606d"])

Results = Result | Mapping[str, Result]


@dataclass(frozen=True)
class Turn:
    """One client's turn: accuracies per class before and after it, and the client's samples per class where known."""

    client: int
    round: int
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    held: NDArray[np.float64] | None

    @property
    def forgotten(self) -> float:
        """By how much accuracy fell, over the classes on which it fell, as a mean over all classes.

        >>> Turn(0, 2, np.array([0.8, 0.2]), np.array([0.2, 0.9]), None).forgotten
        0.30000000000000004
        """
        return float(np.nanmean(np.maximum(self.before - self.after, 0)))


def tracked(result: Result, model: str | None = None) -> str:
    """The name of the model whose classes were tracked: the one asked for, or the first."""
    last: Mapping[str, Any] = next((row["models"] for row in reversed(result.rows) if row.get("models")), {})
    known = [name for name, scores in last.items() if "per_class" in scores]
    if not known:
        raise UsageError(
            "no accuracies per class in this run; it needs --track per-class and a method with a global model"
        )
    if model is not None and model not in known:
        raise unknown("tracked model of this run", model, known)
    return model or known[0]


def turn(result: Result, round: int | None = None, client: int | None = None) -> Turn:
    """A client's turn in a round (the last, and the active client that forgot most, where they are not said)."""
    model = tracked(result)
    scores = {row["round"]: row["models"][model] for row in result.rows if model in (row.get("models") or {})}
    there = sorted(t for t in scores if t - 1 in scores and "per_class_after_training" in scores[t])
    if not there:
        raise UsageError("no two rounds in a row were evaluated: evaluate every round to see before and after")
    round = there[-1] if round is None else round
    if round not in there:
        raise UsageError(
            f"round = {round}: must be one of {there[0]} … {there[-1]}, with the round before evaluated too"
        )
    row = next(r for r in result.rows if r["round"] == round)
    clients = [int(k) for k in row["client_seconds"]]  # in the order of the replies
    before = _numbers(scores[round - 1]["per_class"])
    held = _partition(result).get("counts")
    turns = {
        k: Turn(k, round, before, _numbers(after), None if held is None else np.array(held[k], float))
        for k, after in zip(clients, scores[round]["per_class_after_training"], strict=True)
    }
    if client is not None and client not in turns:
        raise UsageError(f"client = {client}: not active in round {round}; active: {', '.join(map(str, clients))}")
    return turns[client] if client is not None else max(turns.values(), key=lambda t: t.forgotten)


def local_figure(results: Results, round: int | None = None, client: int | None = None) -> Figure:
    """(a) A panel a result: the client's samples, the accuracy before and after its training; a column a class."""
    panels = {label: (result, turn(result, round, client)) for label, result in _labelled(results).items()}
    classes = max(len(t.before) for _, t in panels.values())
    cell = float(np.clip(9 / classes, 0.12, 0.62))
    size = (cell * classes + 2.2, 1.75 * len(panels) + 0.5)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    for axes, (label, (result, seen)) in zip(_rows(figure, len(panels)), panels.items(), strict=True):
        _cells(axes, np.stack([seen.before, seen.after]), 0, _SHADES, classes <= 26)
        axes.set_yticks([0, 1], ["before", "after"])
        if seen.held is not None:
            _cells(axes, seen.held[None], -1, _GREYS, classes <= 26)
            axes.set_yticks([-1, 0, 1], ["samples held", "before", "after"])
        axes.set_ylim(1.5, -0.5 if seen.held is None else -1.5)
        _columns(axes, _names(result, len(seen.before)))
        mean = f"mean {np.nanmean(seen.before):.2f} → {np.nanmean(seen.after):.2f}"
        head = f"{label}: " if label else ""
        _title(axes, f"{head}client {seen.client} in round {seen.round}, {mean}, forgotten {seen.forgotten:.2f}")
    return figure


def rounds_figure(results: Results, model: str | None = None) -> Figure:
    """(b) A panel a result: the global model's accuracy on each class (rows) over the rounds (columns)."""
    panels = _labelled(results)
    classes = max(len(_over_rounds(r, model)[1]) for r in panels.values())
    high = float(np.clip(0.22 * classes, 1.2, 8))
    figure = Figure(figsize=(4.1 * len(panels) + 1.2, high + 1), layout="constrained", facecolor="white")
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for place, (axes, (label, result)) in enumerate(zip(every, panels.items(), strict=True)):
        rounds, accuracy = _over_rounds(result, model)
        reach = (rounds[0] - 0.5, rounds[-1] + 0.5, len(accuracy) - 0.5, -0.5)
        axes.imshow(accuracy, cmap=_SHADES, vmin=0, vmax=1, aspect="auto", extent=reach, interpolation="nearest")
        names = _names(result, len(accuracy))
        step = int(np.ceil(10 * len(names) / (high * 72)))
        axes.set_yticks(range(0, len(names), step), names[::step] if place == 0 else [""] * len(names[::step]))
        axes.set_xlabel("round", color=INK, fontsize=9)
        lost = np.nanmean(np.maximum(-np.diff(accuracy, axis=1), 0)) if len(rounds) > 1 else 0.0
        head = f"{label}: " if label else ""
        _title(axes, f"{head}{100 * lost:.1f} % of a class forgotten a round")
    bar = figure.colorbar(every[0].images[0], ax=list(every), shrink=0.9)
    bar.set_label("accuracy", color=INK, fontsize=9)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=INK)
    bar.outline.set_visible(False)
    return figure


def _over_rounds(result: Result, model: str | None) -> tuple[list[int], NDArray[np.float64]]:
    """The evaluated rounds, and accuracies of classes × rounds."""
    name = tracked(result, model)
    rows = [r for r in result.rows if "per_class" in (r.get("models") or {}).get(name, {})]
    return [r["round"] for r in rows], np.stack([_numbers(r["models"][name]["per_class"]) for r in rows], axis=1)


def _labelled(results: Results) -> Mapping[str, Result]:
    return {"": results} if isinstance(results, Result) else results


def _numbers(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if v is None else v for v in values], float)


def _partition(result: Result) -> Mapping[str, Any]:
    """Who holds what, where the run has a folder."""
    return result.file("partition.json") or {}


def _names(result: Result, classes: int) -> list[str]:
    return [str(n) for n in _partition(result).get("class_names", range(classes))]


def _rows(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(count, 1, squeeze=False)[:, 0])


def _cells(axes: Axes, values: NDArray[np.float64], top: int, shades: Colormap, written: bool) -> None:
    """Rows of cells from row `top` down; shares are written in per cent, counts as they are."""
    height, width = values.shape
    most = max(1.0, float(np.nanmax(values)))
    reach = (-0.5, width - 0.5, top + height - 0.5, top - 0.5)
    axes.imshow(values, cmap=shades, vmin=0, vmax=most, aspect="auto", extent=reach)
    for (y, x), value in np.ndenumerate(values):
        if written and not np.isnan(value):
            text = f"{value if shades is _GREYS else 100 * value:.0f}"
            ink = "white" if value > 0.5 * most else INK
            axes.text(x, top + y, text, ha="center", va="center", fontsize=8, color=ink)


def _columns(axes: Axes, names: list[str]) -> None:
    step = int(np.ceil(len(names) / 26))
    turned = max(map(len, names)) > 4
    places: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    axes.set_xticks(range(0, len(names), step), names[::step], **places)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=9, color=INK, loc="left")
    bare(axes)
