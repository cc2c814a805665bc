"""How many neighbours are looked at where the source has the last word."""

import asyncio

import numpy as np
import pytest

from es_ttc.errors import EngineError
from es_ttc.retrievers.base import NearestDocuments
from es_ttc.serving.knn.engine_search import neighbours, until_k


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

    async def find(count: int) -> tuple[NearestDocuments, bool]:
        looked.append(count)
        given = list(range(hidden, min(count, corpus)))
        return neighbours(given, [1 - number / 1e5 for number in given]), count > corpus

    got = asyncio.run(until_k(find, 5, first=5))
    assert looked == looks
    assert got.documents.tolist()[:5] == list(range(hidden, hidden + found))
    assert got.complete is complete
    assert np.all(np.diff(got.cosines) <= 0)


def test_a_score_that_no_cosine_has_is_an_error() -> None:
    assert neighbours([3, 1], [1.0, 0.25]).cosines.tolist() == [1.0, -0.5]
    with pytest.raises(EngineError, match=r"score 1\.800"):
        neighbours([3, 1], [1.8, 0.9])
