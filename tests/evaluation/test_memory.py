"""The methods in memory on a small collection, with a real encoder, against plain arithmetic."""

from collections.abc import Sequence

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import EvaluatedMethod, FirstPassName, resolve, resolve_one, retrieval
from es_ttc.lab.evaluation.plan import EvaluationPlan, run_plan
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.registry import load

DOCUMENTS = (
    Document("bees", "Beekeeping", "Honey bees live in hives. The keeper smokes the hive and takes the honey."),
    Document("rail", "", "The night train from Vienna to Rome leaves at seven and carries sleeping cars."),
    Document("nothing", "", ""),
    Document("cake", "Honey cake", "Stir flour, eggs and butter, then bake for an hour."),
    Document("code", "", "A hash table maps keys to values; collisions are chained."),
    Document("moon", "", "Tides follow the moon, twice a day."),
)
QUERIES = {"q 1": "insects that make honey", "q2": "sleeper rail journey", "q3": "zzzz"}
COLLECTION = Collection(
    "tiny", "test", DOCUMENTS, QUERIES, {"q 1": {"bees": 1}, "q2": {"rail": 1}, "q3": {"code": 1, "moon": 1}}
)
TEXTS = [f"{one.title} {one.text}".strip() for one in DOCUMENTS]


@pytest.fixture(scope="module")
def encoded(encoder: Encoder) -> tuple[CorpusFeatures, list[Query]]:
    spec = IndexSpec(encoder.identity, codec="float16")
    queries = encode_queries(list(QUERIES.values()), encoder, tokens=False)
    return encode_corpus(DOCUMENTS, spec, encoder), queries


def searcher(
    encoded: tuple[CorpusFeatures, list[Query]],
    *,
    window: int | None,
    first_pass: FirstPassName = "dense",
    methods: Sequence[EvaluatedMethod] = (),
) -> MemorySearcher:
    return MemorySearcher(COLLECTION, TEXTS, retrieval(methods), *encoded, first_pass=first_pass, window=window)


def test_dense_is_the_cosine_of_pooled_vectors_without_the_empty_document(
    encoder: Encoder, encoded: tuple[CorpusFeatures, list[Query]]
) -> None:
    found = searcher(encoded, window=100).rank(resolve_one("dense"))
    pooled = encoder.encode(TEXTS, tokens=False).pooled
    for text, (query, ranking) in zip(QUERIES.values(), found.rankings.items(), strict=True):
        [vector] = encoder.encode([text], role="query", tokens=False).pooled
        cosines = {one.id: float(row @ vector) for one, row in zip(DOCUMENTS, pooled, strict=True)}
        del cosines["nothing"]
        assert ranking == sorted(cosines, key=lambda document: -cosines[document])
        expected = [(1 + cosines[document]) / 2 for document in ranking]
        np.testing.assert_allclose(found.scores[query], expected, atol=2e-4)
    assert found.rankings["q 1"][0] == "bees"
    assert found.rankings["q2"][0] == "rail"


def test_bm25_finds_only_documents_with_a_word_of_the_query() -> None:
    found = MemorySearcher(COLLECTION, TEXTS, retrieval([])).rank(resolve_one("bm25"))
    assert set(found.rankings["q 1"]) == {"bees", "cake"}
    assert found.rankings["q3"] == []


def test_hybrid_fuses_both(encoded: tuple[CorpusFeatures, list[Query]]) -> None:
    memory = searcher(encoded, window=100)
    runs = [memory.rank(resolve_one(name)).rankings["q 1"] for name in ("bm25", "dense")]
    expected = {one.id: sum(1 / (61 + run.index(one.id)) for run in runs if one.id in run) for one in DOCUMENTS}
    found = memory.rank(resolve_one("hybrid")).rankings["q 1"]
    assert found == sorted(found, key=lambda document: -expected[document])
    assert set(found) == {one.id for one in DOCUMENTS} - {"nothing"}


@pytest.mark.parametrize("name", ["maxsim", "spectral"])
def test_a_rescorer_gives_what_it_gives_a_request(name: str, encoded: tuple[CorpusFeatures, list[Query]]) -> None:
    features, queries = encoded
    method = resolve_one(name)
    found = searcher(encoded, window=None).rank(method)
    everything = np.flatnonzero(features.present)
    window = features.window(everything, np.zeros(len(everything), dtype=np.float32), method.needs)
    for query, encoded_query in zip(QUERIES, queries, strict=True):
        scores = (1 + load(name).score(encoded_query, window, method.params)) / 2
        best = np.argsort(-scores, kind="stable")
        assert found.rankings[query][:5] == [window.ids[i] for i in best]
        np.testing.assert_allclose(found.scores[query], scores[best], atol=1e-6)
        assert found.rankings[query][5:] == ["nothing"]  # part of the corpus, without a score


def test_only_the_window_is_reordered(encoded: tuple[CorpusFeatures, list[Query]]) -> None:
    first = searcher(encoded, window=2).rank(resolve_one("dense")).rankings
    found = searcher(encoded, window=2).rank(resolve_one("spectral"))
    for query in QUERIES:
        assert set(found.rankings[query][:2]) == set(first[query][:2])
        assert found.rankings[query][2:] == first[query][2:]
        assert len(found.scores[query]) == 2


def test_a_window_of_the_whole_corpus_reaches_what_the_first_pass_did_not_find(
    encoded: tuple[CorpusFeatures, list[Query]],
) -> None:
    narrow = searcher(encoded, window=100, first_pass="bm25").rank(resolve_one("spectral"))
    assert set(narrow.rankings["q 1"]) == {"bees", "cake"}
    wide = searcher(encoded, window=None, first_pass="bm25").rank(resolve_one("spectral"))
    assert wide.rankings["q2"][0] == "rail"
    assert set(wide.rankings["q3"]) == {one.id for one in DOCUMENTS}
    assert wide.rankings["q3"][-1] == "nothing"


def test_parameters_of_retrieval_reach_the_first_pass(encoded: tuple[CorpusFeatures, list[Query]]) -> None:
    methods = resolve(["bm25", "hybrid"], {"hybrid": {"k": 1}})
    found = searcher(encoded, window=100, methods=methods).rank(methods[1])
    assert found.scores["q 1"][0] == pytest.approx(1 / 2 + 1 / 2)


def test_an_evaluation_needs_no_encoder_for_bm25_alone() -> None:
    result, where = run_plan(EvaluationPlan(resolve(["bm25"])), COLLECTION)
    assert where == "memory"
    assert result.methods["bm25"].scores.mean("success@10") == pytest.approx(1 / 3)
    assert result.baseline == "bm25"
    assert result.methods["bm25"].versus == {}


def test_cut_documents_are_counted(encoder: Encoder) -> None:
    result, _ = run_plan(EvaluationPlan(resolve(["dense", "maxsim"]), max_tokens=12), COLLECTION, encoder)
    assert any("4 documents have more than 12 tokens" in warning for warning in result.warnings)


def test_a_method_is_its_own_baseline_with_nothing_to_compare(encoder: Encoder) -> None:
    result, _ = run_plan(EvaluationPlan(resolve(["bm25", "dense", "spectral"]), baseline="bm25"), COLLECTION, encoder)
    assert result.methods["bm25"].versus == {}
    versus = result.methods["spectral"].versus["ndcg@10"]
    means = {name: method.scores.mean("ndcg@10") for name, method in result.methods.items()}
    assert versus.delta == pytest.approx(means["spectral"] - means["bm25"])
    assert versus.wins + versus.ties + versus.losses == len(QUERIES)
    assert versus.interval.low <= versus.delta <= versus.interval.high


@pytest.mark.parametrize("through", ["spans", "tokens"])
def test_retrievers_search_the_whole_corpus(encoder: Encoder, through: str) -> None:
    methods = resolve(["knn:dense", "knn:spectral"], {"knn:spectral": {"through": through, "pooled": False}})
    plan = EvaluationPlan(methods)
    spec = plan.spec(COLLECTION, encoder)
    assert bool(spec.spans) == (through == "spans")
    features = encode_corpus(DOCUMENTS, spec, encoder)
    memory = MemorySearcher(
        COLLECTION, TEXTS, retrieval(methods), features, encode_queries([*QUERIES.values()], encoder, tokens=False)
    )
    dense, spectral = (memory.rank(method) for method in methods)
    assert dense.rankings == memory.rank(resolve_one("dense")).rankings
    rescored = memory.rank(resolve_one("spectral"))
    for query in QUERIES:
        assert spectral.rankings[query] == rescored.rankings[query]
        np.testing.assert_allclose(spectral.scores[query], rescored.scores[query], atol=1e-6)
