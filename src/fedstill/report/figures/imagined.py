"""What generators imagine, drawn as it suits the kind of data: series as lines, rows as distributions.

Beside what was imagined stands what the run knows of the real data: mean and deviation of every channel or column, and
test samples, where it kept some.
No global state: matplotlib's `Figure` itself, never pyplot.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedstill.data.kinds import Series, Table
from fedstill.report.figures.style import BLUE, INK, PALE

_TRUE = "#9a6a2f"
MOST = 12
"""Channels or columns that are drawn at most."""
LINES = 6


def series_figure(kind: Series, samples: NDArray[Any], real: NDArray[Any] | None = None) -> Figure:
    """A panel for each channel: imagined series as lines, real ones dashed, the data's mean ± deviation as a band.

    `samples`, `real`: N × channels × time, in the units of the data.
    """
    names = kind.names or tuple(f"channel {i}" for i in range(kind.shape[0]))
    figure, places = _panels(min(MOST, len(names)), 2.4)
    for channel, axes in enumerate(places):
        mean, std = kind.mean[channel], kind.std[channel]
        axes.axhspan(mean - std, mean + std, color=PALE, alpha=0.6, linewidth=0)
        if real is not None:
            axes.plot(real[_spread(len(real)), channel].T, color=_TRUE, linewidth=0.7, alpha=0.8, linestyle="--")
        axes.plot(samples[:LINES, channel].T, color=BLUE, linewidth=0.8, alpha=0.8)
        axes.set_title(names[channel], fontsize=8, color=INK)
        axes.tick_params(labelsize=6)
    return _told(figure, real is not None)


def _spread(count: int) -> NDArray[Any]:
    """Which of so many samples are drawn: a few, evenly over all of them."""
    return np.linspace(0, count - 1, min(LINES, count)).astype(int)


def _told(figure: Figure, compared: bool) -> Figure:
    """The figure, and where real samples stand in it, what is what."""
    if compared:
        figure.supxlabel("blue: imagined; brown: real test samples; grey: mean ± deviation", fontsize=7, color=INK)
    return figure


def rows_figure(kind: Table, samples: NDArray[Any], real: NDArray[Any] | None = None) -> Figure:
    """A panel for each column: imagined numbers as a histogram over the data's mean ± deviation, categories as bars.

    `samples`, `real`: N × columns, as rows are stored; real ones are drawn as outlines.
    """
    figure, places = _panels(min(MOST, len(kind.columns)), 1.9)
    for place, axes in enumerate(places):
        axes.set_title(kind.columns[place], fontsize=8, color=INK)
        axes.tick_params(labelsize=6)
        values = _there(samples, place)
        if place < len(kind.numeric):
            mean, std = kind.mean[place], kind.std[place]
            axes.axvspan(mean - std, mean + std, color=PALE, alpha=0.6, linewidth=0)
            axes.hist(values, bins=16, color=BLUE)
            if real is not None:
                axes.hist(_there(real, place), bins=16, histtype="step", color=_TRUE)
        else:
            known = kind.categories[place - len(kind.numeric)]
            axes.bar(range(len(known)), _shares(values, len(known)), color=BLUE)
            if real is not None:
                true = _shares(_there(real, place), len(known))
                axes.bar(range(len(known)), true, fill=False, edgecolor=_TRUE)
            axes.set_xticks(range(len(known)), [name[:8] for name in known], rotation=45, fontsize=6)
    return _told(figure, real is not None)


def _there(rows: NDArray[Any], place: int) -> NDArray[Any]:
    """A column's values that are not missing."""
    known: NDArray[Any] = rows[:, place][~np.isnan(rows[:, place])]
    return known


def _shares(codes: NDArray[Any], count: int) -> NDArray[Any]:
    """Every category's share."""
    return np.bincount(codes.astype(int), minlength=count) / max(1, len(codes))


def _panels(count: int, width: float) -> tuple[Figure, list[Axes]]:
    across = min(4, count)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, 1.5 * down + 0.2), layout="constrained", facecolor="white")
    every = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes in every[count:]:
        axes.set_axis_off()
    return figure, every[:count]
