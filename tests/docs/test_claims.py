"""The page of claims is what its script finds; what takes seconds is left to `make reproduce`."""

from collections import Counter

import pytest

from benchmarks.claims import model
from benchmarks.claims.model import Claim, Stale, Verdict
from benchmarks.claims.page import CLAIMS, PAGE, as_page, kept, row_of

LAST = {"S": 25, "N": 16, "T": 19, "A": 15, "R": 14}


def test_every_claim_has_a_verdict() -> None:
    rows, _ = kept()
    wanted = [f"{letter}{number}" for letter, last in LAST.items() for number in range(1, last + 1)]
    assert [claim.number for claim in CLAIMS] == list(rows) == wanted


def test_the_page_is_the_files() -> None:
    rows, about = kept()
    assert PAGE.read_text() == as_page(list(rows.values()), about)


def test_the_overview_counts_the_verdicts() -> None:
    counts = Counter(row.verdict for row in kept()[0].values())
    told = f"{counts[Verdict.HOLDS]} hold, {counts[Verdict.PART]} in part, {counts[Verdict.NOT]} do not, "
    told += f"{counts[Verdict.CONTRADICTED]} are contradicted by the text itself, "
    assert (
        f"{told}{counts[Verdict.UNMEASURED]} could not be measured here" in (PAGE.parents[1] / "results.md").read_text()
    )


def test_claims_agree_with_the_results_they_rest_on() -> None:
    rows, _ = kept()
    for claim in CLAIMS:
        if not claim.seconds:
            assert row_of(claim, claim.find()) == rows[claim.number]


@pytest.mark.parametrize(
    "claim",
    [
        model.cited("X1", "a claim", "1", "results/spectral", Verdict.HOLDS, "a figure", "a line that no page has"),
        model.tested("X2", "a claim", "1", Verdict.HOLDS, "a figure", "docs/test_claims.py::test_that_is_not_here"),
    ],
    ids=["page", "test"],
)
def test_a_verdict_without_its_ground_is_stale(claim: Claim) -> None:
    with pytest.raises(Stale, match="claim"):
        claim.find()
