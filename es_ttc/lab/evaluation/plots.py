"""The report's plots, as inline SVG whose colours and fonts are the page's own, so that they follow light and dark."""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation.results import CollectionResult, MethodResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib draws in these colours; in the SVG each becomes a variable of the page's stylesheet.
INK, MUTED, GRID, METHOD, BASELINE, WIN, LOSS = (f"#0{n}0{n}0{n}" for n in range(1, 8))
_VARIABLES: Mapping[str, str] = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    METHOD: "--method",
    BASELINE: "--baseline",
    WIN: "--win",
    LOSS: "--loss",
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "es-ttc",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
_WIDTH = 10.0
_SIGNED = ("\u22121", "\u2212.5", "0", "+.5", "+1")
_COLUMNS = 3
_FONT = re.compile(r"font-family: [^;]*; ?")
_GROUP_ID = re.compile(r'<g id="[^"]*"')
"""Names of matplotlib's own that would repeat from plot to plot; nothing refers to them."""


def metric_bars(result: CollectionResult, metrics: Sequence[str]) -> str:
    """Return one panel per metric, with a bar per method, its interval as a line, and its value."""
    methods = list(result.methods.values())
    with _figure(len(metrics), 0.55 + 0.32 * len(methods)) as (figure, panels):
        for position, (axes, metric) in enumerate(zip(panels, metrics, strict=True)):
            means = [method.scores.mean(metric) for method in methods]
            rows = np.arange(len(methods))
            colours = [BASELINE if method.name == result.baseline else METHOD for method in methods]
            axes.barh(rows, means, height=0.58, color=colours)
            for row, (method, mean) in enumerate(zip(methods, means, strict=True)):
                interval = method.intervals[metric]
                axes.plot([interval.low, interval.high], [row, row], color=INK, linewidth=1.2, solid_capstyle="butt")
                axes.annotate(
                    f"{mean:.3f}",
                    (max(interval.high, mean), row),
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=9,
                )
            axes.set_title(metric)
            axes.set_xlim(0, 1.22)
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
            _name_rows(axes, methods, first=position % columns(len(metrics)) == 0)
        return _svg(figure, f"{', '.join(metrics)} of every method on {result.name}, with 95 % intervals")


def query_deltas(result: CollectionResult, metric: str) -> str:
    """Return one panel a method: its differences from the baseline, query by query, in falling order."""
    methods = [method for method in result.methods.values() if method.name != result.baseline]
    if not methods:
        return ""
    baseline = result.methods[result.baseline].scores.values[metric]
    with _figure(len(methods), 1.75) as (figure, panels):
        for position, (axes, method) in enumerate(zip(panels, methods, strict=True)):
            deltas = np.sort(method.scores.values[metric] - baseline)[::-1]
            edges = np.linspace(0, 100, len(deltas) + 1)
            axes.stairs(np.maximum(deltas, 0), edges, fill=True, color=WIN)
            axes.stairs(np.minimum(deltas, 0), edges, fill=True, color=LOSS)
            axes.axhline(0, color=MUTED, linewidth=0.8)
            versus = method.versus[metric]
            axes.set_title(f"{method.name}: {versus.wins} won, {versus.ties} tied, {versus.losses} lost")
            axes.set_ylim(-1.05, 1.05)
            axes.set_xlim(0, 100)
            axes.set_yticks([-1, -0.5, 0, 0.5, 1], _SIGNED if position % columns(len(methods)) == 0 else [])
            axes.tick_params(axis="y", length=0, labelcolor=MUTED, labelsize=9)
            axes.set_xlabel("% of queries")
            axes.grid(axis="y")
            axes.set_axisbelow(True)
        return _svg(figure, f"{metric} minus that of {result.baseline}, query by query, on {result.name}")


def reliability(predicted: Sequence[float], shares: Sequence[float]) -> str:
    """Return the share of relevant hits by predicted relevance; on the diagonal both are the same."""
    end = min(1.0, 1.1 * max([*predicted, *shares, 0.1]))
    with _figure(1, 3.6) as (figure, [axes]):
        axes.plot([0, end], [0, end], color=MUTED, linewidth=0.8)
        axes.plot(predicted, shares, color=METHOD, marker="o", markersize=5, linewidth=1.2)
        axes.set_xlim(0, end)
        axes.set_ylim(0, end)
        axes.set_xlabel("mean relevance")
        axes.set_ylabel("share of relevant hits")
        axes.grid()
        axes.set_axisbelow(True)
        return _svg(figure, "Share of relevant hits by predicted relevance")


def columns(panels: int) -> int:
    """Return the number of panels per row: three, or two if three would leave a row with a single panel."""
    return 2 if panels in (2, 4) else _COLUMNS


def _name_rows(axes: "Axes", methods: Sequence[MethodResult], *, first: bool) -> None:
    axes.set_yticks(range(len(methods)), [method.name for method in methods] if first else [])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set_axisbelow(True)


@contextmanager
def _figure(panels: int, panel_height: float) -> "Iterator[tuple[Figure, list[Axes]]]":
    """Yield a figure of small panels, three in a row, in the report's style; drawn without any display."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("the report's plots need matplotlib: pip install 'es-ttc[evaluate]'") from error
    width = min(columns(panels), panels)
    rows = math.ceil(panels / width)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, panel_height * rows + 0.35 * (rows + 1)), layout="constrained")
        FigureCanvasSVG(figure)
        grid = figure.subplots(rows, width, squeeze=False).ravel()
        for axes in grid[panels:]:
            axes.set_visible(False)
        yield figure, list(grid[:panels])


def _svg(figure: "Figure", label: str) -> str:
    """Return a figure as one SVG element with a label for those who cannot see it."""
    from xml.sax.saxutils import quoteattr

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = _FONT.sub("", _GROUP_ID.sub("<g", text))
    return text.replace("<svg", f'<svg role="img" aria-label={quoteattr(label)}', 1)
