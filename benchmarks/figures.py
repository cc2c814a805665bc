"""What figures of the documentation share: colours, fonts, and SVG that is the same bytes for the same numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[1] / "docs" / "images"
INK, MUTED, BAR, STRONG = "#1f2933", "#66717d", "#b9c4cf", "#1769aa"

_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "es-ttc", "font.family": "sans-serif", "font.size": 11}


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    """Give an empty figure of so many inches."""
    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def save(drawn: Figure, name: str) -> None:
    """Write a figure into the documentation's folder of images; inside :func:`figure`."""
    for axes in drawn.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["bottom", "left"]].set_color(BAR)
        axes.tick_params(colors=MUTED, length=0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn.savefig(FOLDER / name, metadata={"Date": None})
