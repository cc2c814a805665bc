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
END = "<!-- benchmarks.reproduce: end -->"
_INTRODUCTION = """# The papers' claims

es-ttc builds five published systems. This page takes each claim of their papers that a program can check, and says
what became of it here. Where the paper's encoders, language models or collections could not be had, the claim was
measured on others or not at all, and the row says so. [Departures](../explanation/papers.md) lists where the code
differs from the text; [measured results](../results.md) describes the machine.

`make reproduce` measures again what takes seconds, checks that the pages and tests behind all other verdicts still say
so, and fails if a verdict below is not what it finds. The same is in [claims.json](claims.json).
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
        parts += [f"## {title}", "", _table([row for row in rows if row.number.startswith(letter)])]
    return "\n".join([*parts, "## How it was measured", "", *(f"- {line}" for line in about), "", END, ""])


def _table(rows: Sequence[Row]) -> str:
    cells = (
        (row.number, f"{row.words} ({row.section})" if row.section else row.words, _shown(row.verdict), row.figure,
         row.source)
        for row in rows
    )  # fmt: skip
    return table(
        ("", "claim (section)", "verdict", "what was found", "by"), ([_escaped(cell) for cell in row] for row in cells)
    )


def _shown(verdict: str) -> str:
    return verdict if verdict in (Verdict.HOLDS, Verdict.UNMEASURED) else f"**{verdict}**"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
