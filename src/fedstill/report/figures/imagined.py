"""What generators imagine, drawn as it suits the kind of data: series as lines, rows as distributions.

Beside what was imagined stands what the run knows of the real data: mean and deviation of every channel or column.
No global state: matplotlib's `Figure` itself, never pyplot.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedstill.data.kinds import Series, Table

_INK, _LINE, _REAL = "#1f2933", "#2b6cb0", "#cbd2d9"
MOST = 12
"""Channels or columns that are drawn at most."""
LINES = 6


def series_figure(kind: Series, samples: NDArray[Any]) -> Figure:
    """A panel for each channel: imagined series as lines, the data's mean ± deviation as a band.

    `samples`: N × channels × time, in the units of the data.
    """
    names = kind.names or tuple(f"channel {i}" for i in range(kind.shape[0]))
    figure, places = _panels(min(MOST, len(names)), 2.4)
    for channel, axes in enumerate(places):
        mean, std = kind.mean[channel], kind.std[channel]
        axes.axhspan(mean - std, mean + std, color=_REAL, alpha=0.6, linewidth=0)
        axes.plot(samples[:LINES, channel].T, color=_LINE, linewidth=0.8, alpha=0.8)
        axes.set_title(names[channel], fontsize=8, color=_INK)
        axes.tick_params(labelsize=6)
    return figure


def rows_figure(kind: Table, samples: NDArray[Any]) -> Figure:
    """A panel for each column: imagined numbers as a histogram over the data's mean ± deviation, categories as bars.

    `samples`: N × columns, as rows are stored.
    """
    figure, places = _panels(min(MOST, len(kind.columns)), 1.9)
    for place, axes in enumerate(places):
        axes.set_title(kind.columns[place], fontsize=8, color=_INK)
        axes.tick_params(labelsize=6)
        values = samples[:, place][~np.isnan(samples[:, place])]
        if place < len(kind.numeric):
            mean, std = kind.mean[place], kind.std[place]
            axes.axvspan(mean - std, mean + std, color=_REAL, alpha=0.6, linewidth=0)
            axes.hist(values, bins=16, color=_LINE)
        else:
            known = kind.categories[place - len(kind.numeric)]
            shares = np.bincount(values.astype(int), minlength=len(known)) / max(1, len(values))
            axes.bar(range(len(known)), shares, color=_LINE)
            axes.set_xticks(range(len(known)), [name[:8] for name in known], rotation=45, fontsize=6)
    return figure


def _panels(count: int, width: float) -> tuple[Figure, list[Axes]]:
    across = min(4, count)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, 1.5 * down + 0.2), layout="constrained", facecolor="white")
    every = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes in every[count:]:
        axes.set_axis_off()
    return figure, every[:count]
