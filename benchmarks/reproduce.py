"""The verdicts on the papers' claims, found again: `make reproduce`.

    python -m benchmarks.reproduce
    python -m benchmarks.reproduce --quick
    python -m benchmarks.reproduce --only S7 T5
    python -m benchmarks.reproduce --write

What takes seconds is measured; other verdicts are those of pages of results, which name their own commands, and of
tests. Exit status 1 if a verdict is not the one of docs/results/claims.md.
"""

import argparse
import sys

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.claims.model import Stale
from benchmarks.claims.page import CLAIMS, FILE, PAGE, Row, as_json, as_page, kept, row_of
from benchmarks.common import heading
from es_ttc.common.files import replace_file

_STYLES = {"holds": "green", "not measured here": "dim", "in part": "yellow"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="CLAIM", help="these claims, for instance S7 T5")
    parser.add_argument("--quick", action="store_true", help="leave out what takes seconds")
    parser.add_argument("--write", action="store_true", help="write docs/results/claims.md and claims.json")
    arguments = parser.parse_args()
    numbers = {claim.number for claim in CLAIMS}
    if unknown := [number for number in arguments.only or () if number not in numbers]:
        parser.error(f"there is no claim {', '.join(unknown)}: S1 to S25, N1 to N16, T1 to T19, A1 to A15, R1 to R14")
    if arguments.write and (arguments.only or arguments.quick):
        parser.error("--write writes all claims: give neither --only nor --quick with it")
    chosen = [
        claim
        for claim in CLAIMS
        if (not arguments.only or claim.number in arguments.only) and not (arguments.quick and claim.seconds)
    ]
    rows: list[Row] = []
    stale: list[str] = []
    errors = Console(stderr=True)
    for claim in track(chosen, "claims", console=errors):
        try:
            rows.append(row_of(claim, claim.find()))
        except Stale as error:
            stale.append(str(error))
    Console().print(_shown(rows))
    for sentence in stale:
        errors.print(sentence, style="red", markup=False)
    if stale:
        return 1
    if arguments.write:
        told = heading("The papers' claims", data="generated from seed 0, and the pages of results")
        about = [line.removeprefix("- ") for line in told.splitlines() if line.startswith("- ")]
        replace_file(FILE, as_json(rows, about).encode())
        replace_file(PAGE, as_page(rows, about).encode())
        return 0
    before, _ = kept()
    changed = [row for row in rows if row.verdict != before[row.number].verdict]
    for row in changed:
        told = f"{row.number} {row.verdict}; docs/results/claims.md has {before[row.number].verdict}"
        errors.print(told, style="red", markup=False)
    return 1 if changed else 0


def _shown(rows: list[Row]) -> Table:
    shown = Table(box=None, pad_edge=False)
    for column in ("", "claim", "verdict", "what was found"):
        shown.add_column(column, overflow="fold")
    for row in rows:
        style = _STYLES.get(row.verdict, "red")
        shown.add_row(row.number, row.words, f"[{style}]{row.verdict}[/]", row.figure)
    return shown


if __name__ == "__main__":
    sys.exit(main())
