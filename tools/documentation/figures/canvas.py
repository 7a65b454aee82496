"""An empty figure, for drawings with several parts."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def new_canvas(width: float, height: float) -> Figure:
    """A figure of so many inches; its ground is white, since code hosts show it on dark pages too."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure
