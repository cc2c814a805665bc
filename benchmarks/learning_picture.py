"""Draw the learning curves of docs/results/learning.md: blend before, and after some queries of the log.

python -m benchmarks.learning_picture
"""

import re
from collections import defaultdict

from benchmarks.figures import BAR, FOLDER, INK, MUTED, STRONG, figure, save

PAGE = FOLDER.parent / "results" / "learning.md"
ROW = re.compile(
    r"\| (?P<collection>[\w-]+) \| (?P<teacher>[\w-]+) \| (?P<queries>\d+) \|[^|]*"
    r"\| \**(?P<gain>[+-][\d.]+)[^|]*\|[^|]*\|$",
    re.MULTILINE,
)
COLLECTIONS = {"toollens": ("ToolLens", 0.399), "scifact": ("SciFact", 0.713)}
"""Title, and nDCG@10 of blend before."""
COLOURS = {"judgements": STRONG, "clicks": INK, "blend": BAR}


def main() -> None:
    """Draw the figure."""
    curves: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in ROW.finditer(PAGE.read_text(encoding="utf-8")):
        if row["collection"] in COLLECTIONS and row["teacher"] in COLOURS:
            before = COLLECTIONS[row["collection"]][1]
            curve = curves[row["collection"]][row["teacher"]] or [(0, before)]
            curves[row["collection"]][row["teacher"]] = [*curve, (int(row["queries"]), before + float(row["gain"]))]
    with figure(9.2, 3.9) as drawn:
        panels = drawn.subplots(1, len(curves), squeeze=False)[0]
        every = [[value for points in lines.values() for _, value in points] for lines in curves.values()]
        span = max(max(values) - min(values) for values in every) + 0.03
        for axes, (name, lines) in zip(panels, curves.items(), strict=True):
            low = min(value for points in lines.values() for _, value in points) - 0.015
            axes.set_ylim(low, low + span)
            ends: dict[float, list[str]] = defaultdict(list)
            axes.set_title(COLLECTIONS[name][0], loc="left", fontsize=11, color=INK)
            for teacher, points in lines.items():
                places = range(len(points))
                values = [value for _, value in points]
                axes.plot(places, values, color=COLOURS[teacher], linewidth=2, marker="o", markersize=4)
                ends[round(values[-1], 2)].append(teacher)
                axes.set_xticks(places, [f"{queries}" if queries else "before" for queries, _ in points])
            for value, teachers in ends.items():
                place = (len(points) - 1, value)
                axes.annotate("\n".join(teachers), place, (6, 0), textcoords="offset points", va="center", color=INK)
            axes.set_xlim(-0.3, len(points) + 0.6)
        panels[0].set_ylabel("blend, nDCG@10", color=MUTED)
        drawn.supxlabel("queries of the log that were learned from, and who says what they should find", color=MUTED)
        save(drawn, "learning.svg")


if __name__ == "__main__":
    main()
