"""Draw the README's figure from what the demonstration measures: ``es-ttc demo --json``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common import heading, table
from benchmarks.figures import BAR, FOLDER, INK, MUTED, STRONG, figure

FIGURE = FOLDER / "demo.svg"
TITLES = {
    "limit-style": "profiles that list 40 things,\nasked for one in other words",
    "python": "this Python's library,\nquestions written by hand",
}
METRIC = "ndcg@10"


@click.command()
@click.option("--measured", type=click.Path(exists=True, path_type=Path), help="An earlier run's JSON; none: run now.")
@click.option("--out", type=click.Path(path_type=Path), default=FIGURE, help="Where the figure goes.")
def main(measured: Path | None, out: Path) -> None:
    """Print the table behind the figure and draw it."""
    report = json.loads(measured.read_text(encoding="utf-8") if measured else _demonstration())
    data = " and ".join(f"{name} ({result['documents']} documents)" for name, result in report["data"].items())
    print(heading("The demonstration", data=f"{data}; {report['engine']}; {report['backend']}"))
    columns = ("collection", "method", "nDCG@10", "95 % interval", "recall@10")
    print(table(columns, (row for name, result in report["data"].items() for row in _rows(name, result))))
    out.parent.mkdir(parents=True, exist_ok=True)
    draw(report).savefig(out, metadata={"Date": None})


def draw(report: dict[str, Any]) -> Figure:
    """Return the figure: one panel a collection, one bar a method, the interval as a line."""
    with figure(9.2, 3.1) as drawn:
        panels = drawn.subplots(1, len(report["data"]), sharex=True)
        for axes, (name, result) in zip(panels, report["data"].items(), strict=True):
            _panel(axes, next(title for key, title in TITLES.items() if name.startswith(key)), result["methods"])
        drawn.supxlabel("nDCG@10 with its 95 % interval: what OpenSearch returned, rescored", color=MUTED, fontsize=10)
    return drawn


def _panel(axes: Axes, title: str, methods: dict[str, Any]) -> None:
    for place, (name, method) in enumerate(methods.items()):
        low, high = method["intervals"][METRIC]
        value = method[METRIC]
        axes.barh(place, value, color=STRONG if name == "blend" else BAR, height=0.68)
        axes.plot((low, high), (place, place), color=INK, linewidth=1)
        axes.text(high + 0.015, place, f"{value:.2f}", va="center", color=INK)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_yticks(range(len(methods)), list(methods), color=INK)
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(BAR)
    axes.tick_params(length=0, colors=MUTED)
    axes.tick_params(axis="y", colors=INK)


def _rows(name: str, result: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for method, values in result["methods"].items():
        low, high = values["intervals"][METRIC]
        rows.append((name, method, f"{values[METRIC]:.3f}", f"{low:.3f} to {high:.3f}", f"{values['recall@10']:.3f}"))
    return rows


def _demonstration() -> str:
    command = [sys.executable, "-m", "es_ttc", "demo", "--json"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=900).stdout


if __name__ == "__main__":
    main()
