"""The critical-difference picture: methods on an axis of mean ranks, bars over those that do not differ."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from fedstill.experiment.leaderboard import League


def ranks_figure(league: League) -> Figure:
    """Mean ranks of a league (Demšar 2006): the best on the left, a bar joins methods closer than the difference."""
    placed = [(s.rank, s.method) for s in league.standings if s.rank is not None]
    count, critical = len(placed), league.critical or 0.0
    half = (count + 1) // 2
    bars = cliques([rank for rank, _ in placed], critical)
    figure = Figure(figsize=(9, 1.2 + 0.24 * half + 0.12 * len(bars)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    low, high = 1.0, float(max(count, 2))
    axes.set_xlim(low - 0.45 * (high - low), high + 0.45 * (high - low))
    depth = 1.2 + 0.3 * len(bars)
    axes.set_ylim(-(depth + half), 2.2)
    axes.plot([low, high], [0, 0], color="#1f2933", linewidth=1)
    for tick in range(1, count + 1):
        axes.plot([tick, tick], [0, 0.18], color="#1f2933", linewidth=0.8)
        axes.text(tick, 0.3, str(tick), ha="center", va="bottom", fontsize=8)
    axes.plot([low, min(high, low + critical)], [1.4, 1.4], color="#d2521a", linewidth=2)
    axes.text(low, 1.55, f"critical difference {critical:.2f}", fontsize=8, color="#d2521a")
    for place, (rank, method) in enumerate(placed):
        left = place < half
        level = -(depth + (place if left else count - 1 - place))
        edge = low - 0.05 * (high - low) if left else high + 0.05 * (high - low)
        axes.plot([rank, rank, edge], [0, level, level], color="#9aa5b1", linewidth=0.8)
        axes.text(edge, level, f" {method} {rank:.2f} ", ha="right" if left else "left", va="center", fontsize=8)
    for number, (first, last) in enumerate(bars):
        axes.plot([first - 0.05, last + 0.05], [-0.35 - 0.3 * number] * 2, color="#1f6fc4", linewidth=3)
    return figure


def cliques(ranks: Sequence[float], critical: float) -> list[tuple[float, float]]:
    """The longest stretches of sorted mean ranks that are no wider than the critical difference, none inside another.

    >>> cliques([1.0, 1.5, 2.4, 4.0], 1.0)
    [(1.0, 1.5), (1.5, 2.4)]
    """
    ordered = sorted(ranks)
    spans = [(low, max(high for high in ordered if high - low < critical)) for low in ordered if critical > 0]
    kept = [span for span in spans if span[1] > span[0]]
    return [span for place, span in enumerate(kept) if not any(a <= span[0] and span[1] <= b for a, b in kept[:place])]
