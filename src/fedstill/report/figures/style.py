"""What all pictures have in common: their colours, and axes without a frame."""

from matplotlib.axes import Axes

INK, FAINT, EDGE, PALE, GRID, BLUE = "#1f2933", "#7b8794", "#9aa5b1", "#cbd2d9", "#e4e7eb", "#2b6cb0"


def bare(axes: Axes) -> None:
    """Take frame and tick marks away, and make the tick labels small."""
    axes.tick_params(length=0, labelsize=8, labelcolor=INK)
    axes.spines[:].set_visible(False)
