"""The twelve programs on a real encoder: what they cost, what they do not depend on, what they survive."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.rescorers.programs.catalogue import CATALOGUE, REVERSED, TOPIC, Reading
from es_ttc.rescorers.programs.encoding import encode_fn
from es_ttc.rescorers.programs.interface import PASSAGE, Chunks, Context, Program, ProgramError, run
from es_ttc.rescorers.programs.rescorers import softcentroid
from es_ttc.rescorers.programs.rounds import RoundSearch
from es_ttc.vectors.chunks import GRANULARITIES
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.tokens import Float32

DOCUMENTS = (
    "The heron stands in shallow water. It waits for fish. Then it strikes.",
    "Pumps move water uphill. A heron was seen near one of them.",
    "Rust compiles to machine code. Its borrow checker finds many errors.",
    "Fishing quotas were cut again. Boats stayed in the harbour. Prices rose.",
    "Rivers carry sediment to the sea. Herons and gulls nest at their mouths.",
    "The compiler reports an error. Nobody reads it.",
    "",
    "苍鹭站在浅水里。它在等鱼。",
    "A recipe: cook the fish, add salt. Serve at once.",
)
QUERIES = ("what does a heron eat", "compiler errors", "鱼")
PROGRAMS = {name: entry.program for name, entry in CATALOGUE.items()} | {"softcentroid": softcentroid}


class Spy:
    """Counts what the encoder is asked for, and remembers it: programs share most texts."""

    def __init__(self, encoder: Encoder) -> None:
        self.calls: Counter[str] = Counter()
        self._encode = encode_fn(encoder)
        self._known: dict[tuple[str, str, int | None, int | None], Float32] = {}

    def __call__(
        self, texts: Sequence[str], adapter: str = PASSAGE, dimensions: int | None = None, max_length: int | None = None
    ) -> Float32:
        self.calls[adapter] += len(texts)
        new = [text for text in dict.fromkeys(texts) if (text, adapter, dimensions, max_length) not in self._known]
        vectors = self._encode(new, adapter, dimensions, max_length)
        self._known |= {(text, adapter, dimensions, max_length): row for text, row in zip(new, vectors, strict=True)}
        return np.stack([self._known[text, adapter, dimensions, max_length] for text in texts]) if texts else vectors


@pytest.fixture(scope="module")
def spy(encoder: Encoder) -> Spy:
    return Spy(encoder)


def scored(
    program: Program, spy: Spy, queries: Sequence[str] = QUERIES, documents: Sequence[str] = DOCUMENTS
) -> tuple[Float32, Context]:
    context = Context(
        queries, documents, [f"q{i}" for i in range(len(queries))], list(map(str, range(len(documents)))), spy
    )
    Q, D = spy(queries, "retrieval.query"), spy(documents)
    spy.calls.clear()
    return run(program, Q, D, context), context


@pytest.mark.parametrize("name", CATALOGUE)
def test_encoder_calls_are_those_of_the_papers_costs(name: str, spy: Spy) -> None:
    entry = CATALOGUE[name]
    _, context = scored(entry.program, spy)
    index_texts = context.index_texts
    assert spy.calls.total() - index_texts == entry.passes * len(QUERIES)
    kinds: dict[Reading, int] = {granularity: len(context.chunks(granularity).texts) for granularity in GRANULARITIES}
    kinds |= {TOPIC: len(DOCUMENTS), REVERSED: len(DOCUMENTS)}
    assert index_texts == sum(kinds[reading] for reading in entry.reads)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "bidirzscore"])
def test_a_query_scores_the_same_alone_and_in_a_batch(name: str, spy: Spy) -> None:
    batch, _ = scored(PROGRAMS[name], spy)
    for row, query in enumerate(QUERIES):
        alone, _ = scored(PROGRAMS[name], spy, [query])
        np.testing.assert_allclose(alone[0], batch[row], atol=1e-4)


def test_bidirzscore_scores_alone_as_in_the_batch_that_it_is_calibrated_with(spy: Spy) -> None:
    batch, context = scored(PROGRAMS["bidirzscore"], spy)
    Q, D = spy(QUERIES, "retrieval.query"), spy(DOCUMENTS)
    alone = Context(QUERIES[:1], DOCUMENTS, ["q0"], context.doc_ids, spy, calibration=Moments.of(Q))
    np.testing.assert_allclose(run(PROGRAMS["bidirzscore"], Q[:1], D, alone)[0], batch[0], atol=1e-4)
    assert not np.allclose(scored(PROGRAMS["bidirzscore"], spy, QUERIES[:2])[0][0], batch[0], atol=1e-2)


def test_bidirzscore_is_the_z_score_of_each_column(spy: Spy) -> None:
    found, _ = scored(PROGRAMS["bidirzscore"], spy)
    cosines = spy(QUERIES, "retrieval.query").astype(np.float64) @ spy(DOCUMENTS).T
    deviation = cosines.std(axis=0)
    some = deviation > 1e-6
    expected = np.divide(cosines - cosines.mean(axis=0), deviation, out=np.zeros_like(cosines), where=some)
    np.testing.assert_allclose(found, 2 * expected, atol=1e-3)  # one view for both adapters


@pytest.mark.parametrize("name", PROGRAMS)
def test_scores_do_not_depend_on_the_order_of_the_documents(name: str, spy: Spy) -> None:
    order = np.random.default_rng(7).permutation(len(DOCUMENTS))
    straight, _ = scored(PROGRAMS[name], spy)
    permuted, _ = scored(PROGRAMS[name], spy, documents=[DOCUMENTS[place] for place in order])
    np.testing.assert_allclose(permuted, straight[:, order], atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    "documents",
    [["alone"], ["the same."] * 5, ["", "", ""], ["", "one word"], ["鱼", "Рыба", "मछली", "🐟", "\x00"], ["a. b. c."]],
    ids=["one", "identical", "empty", "nearly empty", "scripts", "initials"],
)
def test_degenerate_documents_get_finite_scores_and_equal_ones_equal_scores(
    name: str, documents: list[str], spy: Spy
) -> None:
    scores, _ = scored(PROGRAMS[name], spy, documents=documents)
    assert np.isfinite(scores).all()
    for other in range(1, len(documents)):
        if documents[other] == documents[0]:
            np.testing.assert_allclose(scores[:, other], scores[:, 0], atol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_encoder_that_gives_nan_does_no_harm(name: str, spy: Spy) -> None:
    def broken(
        texts: Sequence[str], adapter: str = PASSAGE, dimensions: int | None = None, max_length: int | None = None
    ) -> Float32:
        vectors = spy(texts, adapter, dimensions, max_length).copy()
        vectors[::2] = np.nan
        return vectors

    context = Context(QUERIES, DOCUMENTS, ["a", "b", "c"], list(map(str, range(len(DOCUMENTS)))), broken)
    assert np.isfinite(run(PROGRAMS[name], spy(QUERIES), spy(DOCUMENTS), context)).all()


@pytest.mark.parametrize("name", PROGRAMS)
def test_vectors_that_are_not_finite_harm_no_other_query(name: str, spy: Spy) -> None:
    Q, D = spy(QUERIES, "retrieval.query").copy(), spy(DOCUMENTS).copy()
    Q[1] = np.nan
    D[3, 0] = np.inf
    moments = Moments.of(spy(QUERIES, "retrieval.query"))

    def scores(queries: slice) -> Float32:
        places = list(map(str, range(len(DOCUMENTS))))
        context = Context(QUERIES[queries], DOCUMENTS, places[queries], places, spy, calibration=moments)
        return run(PROGRAMS[name], Q[queries], D, context)

    together = scores(slice(None))
    assert np.isfinite(together).all()
    np.testing.assert_allclose(together[:1], scores(slice(1)), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "fused"), [("lexhybridrrf", 11), ("crossroundrrf", 3), ("diversedualctx", 5), ("fisherstability", 22)]
)
def test_a_lone_document_is_first_in_every_ranking_that_is_fused(name: str, fused: int, spy: Spy) -> None:
    scores, _ = scored(PROGRAMS[name], spy, documents=["alone"])
    np.testing.assert_array_equal(scores, fused)


@pytest.mark.parametrize(("angle", "falls_back"), [(0.0, True), (0.09, True), (0.11, False), (1.0, False)])
def test_a_query_that_its_best_documents_explain_has_no_residual_round(angle: float, falls_back: bool) -> None:
    """Round 3 falls back to round 1 where less than 0.1 of the query is left (B.6)."""
    best = np.eye(4, dtype=np.float32)[0]
    documents = np.stack([best] * 4 + list(np.eye(4, dtype=np.float32)[[2, 3, 2, 3]]))
    query = np.array([[np.cos(angle), np.sin(angle), 0, 0]], np.float32)
    places = list(map(str, range(len(documents))))
    chunks = Chunks(documents, np.arange(len(documents) + 1), [""] * len(documents))
    seen: dict[str, Float32] = {}
    context = Context(
        ["nothing"], [""] * len(documents), ["q"], places, never,
        stored=dict.fromkeys(GRANULARITIES, chunks),
        views=dict.fromkeys([("retrieval.query", None), (PASSAGE, 128)], documents),
        record=seen.__setitem__,
    )  # fmt: skip
    run(PROGRAMS["crossroundrrf"], query, documents, context)
    moved = RoundSearch.begin(query, documents, context).hybrid.round(query - np.cos(angle) * best)
    np.testing.assert_allclose(seen["residual"], seen["first"] if falls_back else moved, atol=1e-6)
    assert falls_back or not np.allclose(moved, seen["first"])


def never(
    texts: Sequence[str], adapter: str = PASSAGE, dimensions: int | None = None, max_length: int | None = None
) -> Float32:
    raise AssertionError(f"everything is stored, and {texts} were to be encoded")


def test_a_pasted_program_runs_as_it_is(spy: Spy) -> None:
    def pasted(Q, D, S, ctx):  # type: ignore[no-untyped-def]
        again = ctx.encode_fn(ctx.doc_texts, adapter="text-matching", dimensions=128, max_length=64)
        assert again.shape == (len(ctx.doc_ids), 128)
        short = ctx.encode_fn(ctx.query_texts, "retrieval.query", 128)
        return 0.5 * S + 0.5 * short @ again.T

    scores, context = scored(pasted, spy)
    assert scores.shape == (len(context.query_ids), len(DOCUMENTS))
    assert scores[0].argmax() in (0, 1, 4)


@pytest.mark.parametrize("result", [np.zeros((2, 2)), np.full((3, 9), np.nan), np.zeros((3, 9), int)])
def test_a_program_that_breaks_its_promise_is_named(result: Float32, spy: Spy) -> None:
    def careless(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
        return result

    with pytest.raises(ProgramError, match=r"program \[careless\]"):
        scored(careless, spy)


def test_channels_are_shown_to_whoever_records_them(spy: Spy) -> None:
    seen: dict[str, Float32] = {}
    context = Context(
        QUERIES, DOCUMENTS, ["a", "b", "c"], list(map(str, range(len(DOCUMENTS)))), spy, record=seen.__setitem__
    )
    run(PROGRAMS["lexhybridrrf"], spy(QUERIES), spy(DOCUMENTS), context)
    assert {"words", "bigrams", "document", "topic", "reversed", "sentences.max", "paragraphs.mean"} <= seen.keys()
    assert seen["words"][0].argmax() == 1  # "heron" and "a": the pump's text has both
