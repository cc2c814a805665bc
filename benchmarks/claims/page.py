"""docs/results/claims.md and claims.json: rendered from findings, and read back."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.claims import nnn, programs, rgs, sira, spectral
from benchmarks.claims.model import ROOT, Claim, Finding, Verdict
from benchmarks.common import table

PAPERS: Mapping[str, tuple[str, Sequence[Claim]]] = {
    "Spectral Retrieval": ("S", spectral.CLAIMS),
    "NNN decoding": ("N", nnn.CLAIMS),
    "Programs for test-time compute": ("T", programs.CLAIMS),
    "SIRA": ("A", sira.CLAIMS),
    "Reranker-guided search": ("R", rgs.CLAIMS),
}
CLAIMS: tuple[Claim, ...] = tuple(claim for _, claims in PAPERS.values() for claim in claims)
PAGE = ROOT / "docs" / "results" / "claims.md"
FILE = ROOT / "docs" / "results" / "claims.json"
BEGIN = "<!-- benchmarks.reproduce: begin -->"
REPRODUCED = "`python -m benchmarks.reproduce`"
END = "<!-- benchmarks.reproduce: end -->"
_INTRODUCTION = """# The papers' claims

es-ttc builds five published systems. This page takes each claim of their papers that a program can check, and says
whether it holds here. Where the paper's encoders, language models or collections could not be had, the claim was
measured on others or not at all (`not measured here`). [Departures](../explanation/papers.md) lists where the code
differs from the text; [measured results](../results.md) describes the machine.

`make reproduce` finds every verdict again: it measures what takes seconds (an empty last column), checks that the
pages and tests behind the others still say so, and fails if a verdict differs. [claims.json](claims.json) has all
claims with the figures, also of those that hold.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A claim with its finding, as the file has it."""

    number: str
    words: str
    section: str
    verdict: str
    figure: str
    source: str


def row_of(claim: Claim, finding: Finding) -> Row:
    """Return a claim's row."""
    return Row(claim.number, claim.words, claim.section, finding.verdict.value, finding.figure, claim.source)


def kept(path: Path = FILE) -> tuple[dict[str, Row], list[str]]:
    """Return the rows of the file, by number, and the lines on how it was made."""
    read = json.loads(path.read_text())
    return {row["number"]: Row(**row) for row in read["claims"]}, read["about"]


def as_json(rows: Sequence[Row], about: Sequence[str]) -> str:
    """Return the file's text."""
    return json.dumps({"about": about, "claims": [asdict(row) for row in rows]}, indent=2, ensure_ascii=False) + "\n"


def as_page(rows: Sequence[Row], about: Sequence[str]) -> str:
    """Return the page's text.

    Args:
        rows: All claims, in their order.
        about: Machine, versions, data, command and date.
    """
    counts = Counter(row.verdict for row in rows)
    total = ", ".join(f"{verdict.value} {counts[verdict.value]}" for verdict in Verdict)
    parts = [_INTRODUCTION, BEGIN, "", f"{len(rows)} claims: {total}.", ""]
    for title, (letter, _) in PAPERS.items():
        of_paper = [row for row in rows if row.number.startswith(letter)]
        holding = [f"- {row.number}: {row.words}" for row in of_paper if row.verdict == Verdict.HOLDS]
        parts += [f"## {title}", "", _table([row for row in of_paper if row.verdict != Verdict.HOLDS])]
        parts += [f"These {len(holding)} hold:", "", *holding, ""]
    return "\n".join([*parts, "## How it was measured", "", *(f"- {line}" for line in about), "", END, ""])


def _claim(row: Row) -> str:
    return f"{row.words} ({row.section})" if row.section else row.words


def _table(rows: Sequence[Row]) -> str:
    cells = ((row.number, _claim(row), row.verdict, row.figure, row.source.removeprefix(REPRODUCED)) for row in rows)
    return table(
        ("", "claim (section)", "verdict", "what was found", "by"), ([_escaped(cell) for cell in row] for row in cells)
    )


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
