"""How many neighbours are looked at where the source has the last word."""

import asyncio

import pytest

from es_ttc.errors import EngineError
from es_ttc.serving.candidates.nearest import Neighbour, Neighbours, cosines_of, until_k
from es_ttc.serving.features.keys import DocumentKey


@pytest.mark.parametrize(
    ("hidden", "corpus", "looks", "found", "complete"),
    [
        (0, 50_000, [5], 5, True),
        (17, 50_000, [5, 20, 80], 5, True),
        (50_000, 50_000, [5, 20, 80, 320, 1280, 5120, 10_000], 0, False),
        (28, 30, [5, 20, 80], 2, True),
    ],
)
def test_more_are_requested_until_k_may_be_returned(
    hidden: int, corpus: int, looks: list[int], found: int, complete: bool
) -> None:
    """The nearest ones are hidden."""
    looked = []

    async def find(count: int) -> Neighbours:
        looked.append(count)
        given = range(hidden, min(count, corpus))
        return Neighbours(
            [Neighbour({"_id": number}, DocumentKey("i", "e", "h"), 1.0) for number in given], count > corpus
        )

    got = asyncio.run(until_k(find, 5, first=5))
    assert looked == looks
    assert [one.hit["_id"] for one in got.documents[:5]] == [*range(hidden, hidden + found)]
    assert got.complete is complete


def test_a_score_that_no_cosine_has_is_an_error() -> None:
    assert cosines_of([1.0, 0.25]) == [1.0, -0.5]
    with pytest.raises(EngineError, match=r"score 1\.800"):
        cosines_of([1.8, 0.9])
