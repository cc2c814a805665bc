"""The chart of a search in the terminal: cost against gain."""

from collections.abc import Sequence

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


def _range(means: Sequence[float]) -> tuple[float, float]:
    """Return the displayed range of gains: as far below the cosine as above it; worse gains are drawn at the edge."""
    high = max([*means, 0.01])
    return max(min([*means, 0.0]), -high), high
