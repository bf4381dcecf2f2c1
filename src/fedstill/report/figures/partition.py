"""The picture of a partition: who holds how much of what, as the papers draw it.

A dot's area is the number of samples of a class (row) that a client (column) holds; the bars above are clients' totals.
No global state: matplotlib's `Figure` itself, never pyplot.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedstill.core.errors import UsageError
from fedstill.report.figures.style import BLUE, FAINT, GRID, INK, PALE

_POINT = 72  # points per inch


def partition_figure(counts: NDArray[np.integer], class_names: Sequence[str]) -> Figure:
    """A dot for every client (x) and class (y) with samples, from counts of clients × classes.

    >>> figure = partition_figure(np.array([[9, 0], [1, 4]]), ["cat", "dog"])
    >>> len(figure.axes)
    2
    """
    clients, classes = counts.shape
    if classes != len(class_names):
        raise UsageError(f"{classes} classes in the counts, {len(class_names)} class names")
    cell = float(np.clip(16 / max(clients, classes), 0.09, 0.36))  # inches from dot to dot
    width, height = float(np.clip(cell * clients, 3.2, 20)), float(np.clip(cell * classes, 2, 20))
    name = 0.075 * max(len(str(n)) for n in class_names)
    figure = Figure(figsize=(width + name + 0.9, height + 1.65), layout="constrained", facecolor="white")
    top, dots = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [0.7, height], "hspace": 0.02})
    _draw_totals(top, counts.sum(axis=1))
    _draw_dots(dots, counts, min(width / clients, height / classes))
    _label(dots, clients, [str(n) for n in class_names], width / clients * _POINT, height / classes * _POINT)
    return figure


def _draw_totals(axes: Axes, totals: NDArray[np.integer]) -> None:
    axes.bar(np.arange(len(totals)), totals, width=0.6, color=PALE)
    axes.set_ylim(0, max(1, totals.max()) * 1.05)
    axes.set_yticks([max(1, int(totals.max()))], [f"{totals.max():,}\nsamples"], va="top")
    axes.tick_params(length=0, labelsize=8, labelcolor=FAINT, labelbottom=False)
    axes.spines[:].set_visible(False)


def _draw_dots(axes: Axes, counts: NDArray[np.integer], cell: float) -> None:
    client, number = np.nonzero(counts)
    largest = (0.92 * cell * _POINT) ** 2  # the greatest dot all but fills its cell (s is the square around a dot)
    area = np.maximum(largest * counts[client, number] / max(1, counts.max()), 1.5)  # one sample is still seen
    axes.scatter(client, number, s=area, color=BLUE, edgecolors="white", linewidths=0.4, zorder=2)
    axes.grid(color=GRID, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _label(axes: Axes, clients: int, class_names: list[str], across: float, down: float) -> None:
    """Names and numbers where there is room: `across` points from client to client, `down` from class to class."""
    every = next(
        n for n in (1, 2, 5, 10, 20, 50, 100, clients) if n * across >= 5 * len(str(clients)) + 2 or n == clients
    )
    step = int(np.ceil(9.5 / down))
    axes.set_xlim(-0.6, clients - 0.4)
    axes.set_ylim(len(class_names) - 0.4, -0.6)
    axes.set_xticks(range(0, clients, every))
    axes.set_yticks(range(0, len(class_names), step), class_names[::step])
    axes.tick_params(length=0, labelsize=8 if down >= 12 else 7, labelcolor=INK)
    axes.set_xlabel("client", color=INK, fontsize=9)
    axes.set_ylabel("class", color=INK, fontsize=9)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the ending says how (.png, .svg, .pdf). Folders are made, and no date is written into it."""
    path = Path(path)
    known = figure.canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower()
    if kind not in known:
        raise UsageError(f"{path}: cannot write a picture of kind {kind!r}; known: {', '.join(sorted(known))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(path, dpi=160, metadata=undated.get(kind))
    return path
