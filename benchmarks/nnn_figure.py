"""Draw the figure of docs/how-to/stop-near-duplicates.md: one query, twelve texts of which eight say the same.

python -m benchmarks.nnn_figure
"""

import numpy as np

from benchmarks.common import heading, table
from benchmarks.figures import BAR, INK, MUTED, STRONG, figure, save
from es_ttc.encoders import load_encoder
from es_ttc.lab.evaluation.metrics import intra_list_similarity
from es_ttc.rescorers.nnn import Dictionary, Penalty, solve
from es_ttc.settings import Settings

QUERY = "plan a weekend in Lisbon: flights, a hotel near the river, and the weather"
TEXTS = (
    "Search flights to Lisbon",
    "Flight search: find flights to Lisbon",
    "Find cheap flights to Lisbon, Portugal",
    "Search and compare flights to Lisbon",
    "Flights to Lisbon: search and book",
    "Book hotels in Lisbon",
    "Hotel search: rooms in Lisbon",
    "Find a hotel room in Lisbon near the river",
    "Weather forecast for the weekend",
    "Currency converter for the euro",
    "Restaurants with a view of a river",
    "Trains between Portuguese cities",
)
PENALTY = Penalty(0.2, 0.1)
TOP = 4


def main() -> None:
    encoder = load_encoder("minilm@onnx", cache_dir=Settings().cache_dir)
    rows = encoder.encode(TEXTS, tokens=False).pooled
    query = encoder.encode([QUERY], role="query", tokens=False).pooled[0]
    cosines = rows @ query
    order = np.argsort(-cosines)
    rows, cosines, names = rows[order], cosines[order], [TEXTS[place] for place in order]
    coefficients = solve(Dictionary.of(rows), query, PENALTY).x
    picked = np.argsort(-coefficients, kind="stable")[:TOP]

    print(heading("One query with near-duplicates", data=f"{len(TEXTS)} texts; l1 {PENALTY.l1}, l2 {PENALTY.l2}"))
    lines = [(name, f"{cosines[n]:.3f}", f"{coefficients[n]:.3f}") for n, name in enumerate(names)]
    print(table(("text", "cosine with the query", "coefficient"), lines))
    alike = [intra_list_similarity(rows[places]) for places in (np.arange(TOP), picked)]
    print(f"Mean cosine of two of the first {TOP}: dense {alike[0]:.2f}, nnn {alike[1]:.2f}.\n")

    with figure(10.5, 4.6) as drawn:
        matrix, bars = drawn.subplots(1, 2, width_ratios=(1, 1.05))
        matrix.imshow(np.clip(rows @ rows.T, 0, 1), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        matrix.set_yticks(range(len(names)), names, fontsize=9)
        matrix.set_xticks([])
        matrix.set_title("cosine of each text with each", loc="left", fontsize=11, color=INK)
        places = np.arange(len(names))
        bars.barh(places - 0.2, cosines, 0.38, color=BAR, label="dense: cosine with the query")
        bars.barh(places + 0.2, coefficients, 0.38, color=STRONG, label="nnn: coefficient")
        bars.axvline(PENALTY.l1, color=MUTED, linewidth=0.8, linestyle=":")
        bars.text(PENALTY.l1, len(names) - 0.35, " l1", color=MUTED, fontsize=9, va="bottom")
        bars.set_yticks([])
        bars.set_ylim(len(names) - 0.5, -0.5)
        bars.set_title("in the order of dense retrieval", loc="left", fontsize=11, color=INK)
        bars.legend(frameon=False, fontsize=9, loc="lower right")
        save(drawn, "nnn-duplicates.svg")


if __name__ == "__main__":
    main()
