"""Charts of a search: the frontier in the terminal, the frontier and the trajectory as an image."""

from collections.abc import Sequence
from pathlib import Path

from es_ttc.lab.discovery.records import Record
from es_ttc.lab.discovery.summary import frontier, measured

_WIDTH, _HEIGHT = 72, 16


def terminal(records: Sequence[Record], width: int = _WIDTH, height: int = _HEIGHT) -> str:
    """Return cost against gain as text: ``o`` a program of the frontier, ``.`` another one, the line P0."""
    known = [record for record in measured(records) if record.mean is not None and record.cost is not None]
    if not known:
        return "no program has been measured yet"
    front = {record.name for record in frontier(records)}
    costs, means = [record.cost or 1.0 for record in known], [record.mean or 0.0 for record in known]
    right, (low, high) = max([*costs, 2.0]), _range(means)
    field = [[" "] * width for _ in range(height)]

    def place(cost: float, mean: float) -> tuple[int, int]:
        column = round((cost - 1) / (right - 1) * (width - 1))
        return height - 1 - round((mean - low) / (high - low) * (height - 1)), column

    zero = place(1, 0)[0]
    field[zero] = ["-"] * width
    for record in sorted(known, key=lambda one: one.name in front):
        row, column = place(record.cost or 1.0, max(low, record.mean or 0.0))
        field[row][column] = "o" if record.name in front else "."
    labels = {0: f"{high:+.3f}", height - 1: f"{low:+.3f}", zero: " 0.000"}
    lines = [f"{labels.get(number, ''):>7} |{''.join(row).rstrip()}" for number, row in enumerate(field)]
    axis = f"{'':>7} +{'-' * width}\n{'c':>7}  1{right:>{width - 1}.1f}"
    return "\n".join([*lines, axis])


def image(records: Sequence[Record], path: Path) -> None:
    """Draw cost against gain, and the gain over generations, into a file in the format of its suffix."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    known, front = measured(records), frontier(records)
    style = {"svg.fonttype": "none", "svg.hashsalt": "es-ttc", "font.size": 10}
    with mpl.rc_context(style):  # type: ignore[arg-type]  # the stubs know literal keys alone
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
        left.axhline(0, color="0.7", linewidth=0.8)
        left.scatter([one.cost for one in known], [one.mean for one in known], s=12, color="0.7")
        left.plot([1.0, *(one.cost for one in front)], [0.0, *(one.mean for one in front)], color="#1769aa")
        for one in front:
            left.scatter(one.cost, one.mean, s=28, color="#1769aa", zorder=3)
            left.annotate(
                one.name, (one.cost or 1.0, one.mean or 0.0), textcoords="offset points", xytext=(4, -10), fontsize=8
            )
        left.set_xlabel("cost ratio c (P0 = 1)")
        left.set_ylabel("mean Δ nDCG@10 over tasks")
        grown = [one for one in known if one.generation > 0]
        right.axhline(0, color="0.7", linewidth=0.8)
        right.scatter([one.generation for one in grown], [one.mean for one in grown], s=12, color="0.7")
        right.step(*_best(records), where="post", color="#1769aa")
        right.set_xlabel("generation")
        right.set_ylabel("mean Δ nDCG@10; line: best so far")
        low, high = _range([one.mean or 0.0 for one in known] or [0.0])
        for axes in (left, right):
            axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _range(means: Sequence[float]) -> tuple[float, float]:
    """Return the displayed range of gains: as far below the cosine as above it; worse gains are drawn at the edge."""
    high = max([*means, 0.01])
    return max(min([*means, 0.0]), -high), high


def _best(records: Sequence[Record]) -> tuple[list[int], list[float]]:
    best, generations, values = 0.0, [], []
    for record in records:
        best = max(best, record.mean or 0.0)
        generations.append(max(0, record.generation))
        values.append(best)
    return generations, values
