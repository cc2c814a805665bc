from collections.abc import Sequence

import numpy as np
import pytest

from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.programs.interface import Context, run
from es_ttc.rescorers.programs.rescorers import feedback
from es_ttc.retrievers.base import Documents, Vectors
from es_ttc.retrievers.memory import Matrix, MemorySearch
from es_ttc.retrievers.registry import load, parse_params
from es_ttc.vectors.tokens import Float32
from tests.rescorers.windows import unit_rows


def no_encoder(
    texts: Sequence[str], adapter: str = "", dimensions: int | None = None, max_length: int | None = None
) -> Float32:
    raise AssertionError(f"feedback encodes nothing, and was asked for {texts}")


def searching(rows: Float32) -> MemorySearch:
    def windows(documents: Documents, features: frozenset[Feature]) -> Window:
        assert features == {Feature.POOLED}
        return Window([str(one) for one in documents], np.zeros(len(documents), np.float32), pooled=rows[documents])

    return MemorySearch({Vectors.POOLED: Matrix.of(rows)}, windows)


@pytest.mark.parametrize(("name", "temperature"), [("softcentroid", 0.05), ("rocchio", None)])
async def test_feedback_over_the_corpus_ranks_as_over_a_window_that_holds_it(
    name: str, temperature: float | None
) -> None:
    random = np.random.default_rng(11)
    rows, query = unit_rows(random, 40, 16), unit_rows(random, 1, 16)
    retriever = load(name)
    params = retriever.Params()
    found = await retriever.retrieve(Query("q", query), searching(rows), 40, params)
    program = feedback(params.documents, params.weight, temperature)  # type: ignore[attr-defined]
    context = Context(["q"], [""] * 40, ["q"], [str(one) for one in range(40)], no_encoder)
    expected = run(program, query, rows, context)[0]
    assert found.documents.tolist() == np.argsort(-expected, kind="stable").tolist()
    np.testing.assert_allclose(found.scores, np.sort(expected)[::-1], atol=1e-5)


async def test_consensus_moves_to_the_core_and_away_from_all_else() -> None:
    random = np.random.default_rng(5)
    rows, query = unit_rows(random, 40, 16), unit_rows(random, 1, 16)
    retriever = load("consensusrocchio")
    found = await retriever.retrieve(Query("q", query), searching(rows), 40, parse_params(retriever, {"documents": 16}))
    near = rows[np.argsort(-(rows @ query[0]))[:16]]
    mutual = [np.mean([one @ other for j, other in enumerate(near[:4]) if j != i]) for i, one in enumerate(near[:4])]
    core = np.array(mutual) >= np.median(mutual)
    moved = query[0] + near[:4][core].mean(axis=0) - np.concatenate((near[:4][~core], near[8:])).mean(axis=0)
    cosines = rows @ (moved / np.linalg.norm(moved))
    assert found.documents.tolist() == np.argsort(-cosines, kind="stable").tolist()
    np.testing.assert_allclose(found.scores, np.sort(cosines)[::-1], atol=1e-5)


async def test_an_empty_corpus_gives_nothing() -> None:
    retriever = load("softcentroid")
    search = searching(np.zeros((3, 8), np.float32))
    found = await retriever.retrieve(
        Query("q", unit_rows(np.random.default_rng(1), 1, 8)), search, 5, retriever.Params()
    )
    assert len(found.documents) == 0
