"""Draw the learning curves of docs/results/learning.md: blend before, and after some queries of the log.

python -m benchmarks.learning_picture
"""

import re
from collections import defaultdict

from benchmarks.figures import BAR, FOLDER, INK, MUTED, STRONG, figure, save

PAGE = FOLDER.parent / "results" / "learning.md"
ROW = re.compile(r"^\| (?P<name>\w*)[^|]*\| (?P<queries>\d+) \|(?P<gains>.*)\|$", re.MULTILINE)
FURTHER = {"toollens": [(3200, 0.681), (16_893, 0.854)]}
"""Blend after learning from more judged queries: the table beside other rankings."""
TEACHERS = ("judgements", "clicks", "blend")
COLLECTIONS = {"toollens": ("ToolLens", 0.399), "scifact": ("SciFact", 0.713)}
"""Title, and nDCG@10 of blend before."""
COLOURS = {"judgements": STRONG, "clicks": INK, "blend": BAR}


def main() -> None:
    """Draw the figure."""
    page = PAGE.read_text(encoding="utf-8")
    curves: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    name = ""
    for row in ROW.finditer(page.partition("| toollens, another")[0]):
        name = row["name"] or name
        for teacher, cell in zip(TEACHERS, row["gains"].split("|")[1::2], strict=True):
            if name in COLLECTIONS and (gain := re.search(r"[+-][.\d]+", cell)):
                before = COLLECTIONS[name][1]
                curve = curves[name][teacher] or [(0, before)]
                curves[name][teacher] = [*curve, (int(row["queries"]), before + float(gain[0]))]
    for name, further in FURTHER.items():
        curves[name]["judgements"] += further
    with figure(9.2, 3.9) as drawn:
        panels = drawn.subplots(1, len(curves), squeeze=False)[0]
        every = [value for lines in curves.values() for points in lines.values() for _, value in points]
        for axes, (name, lines) in zip(panels, curves.items(), strict=True):
            axes.set_ylim(min(every) - 0.02, max(every) + 0.02)
            ends: dict[tuple[int, float], list[str]] = defaultdict(list)
            axes.set_title(COLLECTIONS[name][0], loc="left", fontsize=11, color=INK)
            for teacher, points in lines.items():
                values = [value for _, value in points]
                axes.plot(range(len(points)), values, color=COLOURS[teacher], linewidth=2, marker="o", markersize=4)
                ends[len(points) - 1, round(values[-1], 2)].append(teacher)
            for place, teachers in ends.items():
                axes.annotate("\n".join(teachers), place, (6, 0), textcoords="offset points", va="center", color=INK)
            longest = max(lines.values(), key=len)
            axes.set_xticks(range(len(longest)), [f"{queries:,}" if queries else "before" for queries, _ in longest])
            axes.set_xlim(-0.3, len(longest) + 0.3)
        panels[0].set_ylabel("blend, nDCG@10", color=MUTED)
        drawn.supxlabel("queries of the log that were learned from, and who says what they should find", color=MUTED)
        save(drawn, "learning.svg")


if __name__ == "__main__":
    main()
