"""Pools, agreement, standing and formats of judgements, without an engine."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from sklearn.metrics import cohen_kappa_score

from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.metrics import score
from es_ttc.lab.judging import formats
from es_ttc.lab.judging.formats import Format, Judged
from es_ttc.lab.judging.overview import Overview, agreement, median_grades, weighted_kappa
from es_ttc.lab.judging.records import (
    Judgement,
    JudgementSource,
    LoggedSignals,
    PooledMethod,
    PooledQuery,
    judgement_id,
    query_id,
)
from es_ttc.lab.judging.standing import standing, tuned_weights
from es_ttc.lab.ranking.weights import tune_weights
from tests.ranking.pools import random_pools

ON_ONE_ENGINE = True

METHODS = (PooledMethod("blend"), PooledMethod("bm25"))


def test_a_pool_is_the_union_of_the_first_documents_in_an_order_of_the_judge() -> None:
    blend = tuple(f"d{place}" for place in range(40))
    pooled = PooledQuery("q", "honey", METHODS, (blend, ("d3", "e1", *blend[20:])), 25)
    assert set(pooled.documents) == {*blend[:25], "e1", *blend[20:40]}
    first, second = pooled.shuffled("Ada"), pooled.shuffled("Bo")
    assert set(first) == set(pooled.documents)
    assert first == pooled.shuffled("Ada") != second
    more = PooledQuery("q", "honey", (*METHODS, PooledMethod("hybrid")), (*pooled.runs, ("f1", "f2")), 25)
    assert [one for one in more.shuffled("Ada") if not one.startswith("f")] == list(first)


def test_agreement_is_that_of_other_implementations() -> None:
    random = np.random.default_rng(1)
    first = random.integers(0, 4, 50)
    second = np.clip(first + random.integers(-1, 2, 50), 0, 3)
    expected = cohen_kappa_score(first, second, weights="linear")
    assert weighted_kappa(first.tolist(), second.tolist()) == pytest.approx(expected)
    assert weighted_kappa([1, 1], [1, 1]) is None

    found = agreement(
        [Judgement("q", f"d{place}", "Ada", int(grade)) for place, grade in enumerate(first)]
        + [Judgement("q", f"d{place}", "Bo", int(grade)) for place, grade in enumerate(second)]
        + [Judgement("q", "alone", "Ada", 3), Judgement("other", "d0", "Cy", 3)]
    )
    [pair] = found
    assert (pair.judges, pair.both) == (("Ada", "Bo"), 50)
    assert pair.equal == pytest.approx(float((first == second).mean()))
    assert pair.kappa == pytest.approx(expected)


def test_one_grade_is_the_median_and_a_model_counts_only_where_asked() -> None:
    given = [Judgement("q", "three", judge, grade) for judge, grade in (("Ada", 0), ("Bo", 3), ("Cy", 2))] + [
        Judgement("q", "two", "Ada", 1),
        Judgement("q", "two", "Bo", 2),
        Judgement("q", "two", "m", 3, JudgementSource.LLM),
    ]
    given.append(Judgement("r", "only", "m", 3, JudgementSource.LLM))
    assert median_grades(given) == {"q": {"three": 2, "two": 1}}
    assert median_grades(given, with_llm=True) == {"q": {"three": 2, "two": 2}, "r": {"only": 3}}


def test_standing_has_the_values_of_the_evaluation() -> None:
    random = np.random.default_rng(2)
    queries, qrels = [], {}
    for number in range(30):
        ids = [f"d{place}" for place in range(20)]
        qrels[f"q{number}"] = {document: int(random.integers(0, 4)) for document in ids[:15]}
        good = sorted(ids, key=lambda document: -qrels[f"q{number}"].get(document, 0))
        bad = random.permutation(ids).tolist()
        queries.append(PooledQuery(f"q{number}", "text", METHODS, (tuple(bad), tuple(good))))
    queries.append(PooledQuery("unjudged", "text", METHODS, ((), ())))
    found = standing(queries, qrels)
    assert (found.judged_queries, found.clear) == (30, True)
    assert [one.method for one in found.methods] == ["bm25", "blend"]
    for one in found.methods:
        expected = score(qrels, {query.id: query.run_of(one.method) for query in queries})
        assert one.ndcg == pytest.approx(expected.mean("ndcg@10"))
        assert one.unjudged == pytest.approx(expected.mean("unjudged@10"))
        assert one.interval.low < one.ndcg < one.interval.high or one.ndcg == 1
    assert found.methods[1].behind is not None
    assert found.methods[1].behind.interval.low > 0
    assert not standing(queries, {}).methods
    few = standing(queries, dict(list(qrels.items())[:5]))
    assert (few.judged_queries, few.clear) == (5, False)


def test_weights_from_kept_signals_are_those_of_tune() -> None:
    pools = random_pools(40)
    qrels = {
        pool.query: {document: int(grade) for document, grade in zip(pool.documents, pool.grades, strict=True)}
        for pool in pools.pools
    }
    queries = [
        PooledQuery(pool.query, "text", signals=LoggedSignals.from_dict(LoggedSignals.of(pool, pools).as_dict()))
        for pool in pools.pools
    ]
    judged = [query for query in queries if any(qrels[query.id].values())]
    found = tuned_weights("shop", queries, qrels)
    assert not isinstance(found, str)
    kept = [query.signals.pool(query.id, qrels[query.id]) for query in judged if query.signals is not None]
    again = tune_weights(type(pools)("shop", "", "none", pools.signals, tuple(kept), {}), "ndcg@10", folds=5)
    assert found.summary["params"]["signals"] == again.tuning.best.params.model_dump()["signals"]
    assert found.as_dict()["clear"]
    few = tuned_weights("shop", queries[:3], qrels)
    assert isinstance(few, str)
    assert "have a relevant document" in few


JUDGED = Judged(
    {"q1": "red, warm dress", query_id("plain"): "plain"},
    {"q1": {"d1": 3, "d2": 0}, query_id("plain"): {"d1": 1}},
)


def test_every_form_gives_back_what_was_written(tmp_path: Path) -> None:
    written = {
        Format.TREC: formats.trec(JUDGED.qrels),
        Format.WORKBENCH: formats.workbench(JUDGED, "mine", "of people"),
        Format.QUEPID: formats.quepid(JUDGED),
    }
    for form, content in written.items():
        path = tmp_path / form
        path.write_bytes(content)
        assert formats.read_judgements(form, path, JUDGED.texts, split="", highest=None) == JUDGED
    formats.write_beir(tmp_path / "folder", JUDGED, "valid")
    assert formats.read_judgements(Format.BEIR, tmp_path / "folder", {}, split="valid", highest=None) == JUDGED
    # The Workbench shows a list as a search's answer; its queries are known here by their texts.
    (tmp_path / "shown").write_bytes(
        orjson.dumps({"hits": {"hits": [{"_source": orjson.loads(written[Format.WORKBENCH])}]}})
    )
    assert formats.read_judgements(Format.WORKBENCH, tmp_path / "shown", JUDGED.texts, split="", highest=None) == JUDGED
    runs: dict[str, dict[str, tuple[str, ...]]] = {"blend": {"q1": ("d2", "d1")}, "bm25": {"q1": ("d1",)}}
    (tmp_path / "run").write_bytes(formats.trec_runs(runs))
    assert formats.read_runs(tmp_path / "run") == runs

    (tmp_path / "scaled").write_text("query,docid,rating\nplain,d1,10\nplain,d2,4\nplain,d3,\n")
    scaled = formats.read_judgements(Format.QUEPID, tmp_path / "scaled", {}, split="", highest=10)
    assert scaled.qrels == {query_id("plain"): {"d1": 3, "d2": 1}}


def test_limits_and_ids() -> None:
    for wrong in (
        lambda: Judgement("q", "d", "Ada", 4),
        lambda: Judgement("q", "d", " ", 1),
        lambda: Judgement("q", "d" * 513, "Ada", 1),
        lambda: Judgement("q", "\ud800", "Ada", 1),
        lambda: PooledQuery("q", " "),
        lambda: PooledQuery("q", "text", METHODS, (("d", "d"), ())),
        lambda: PooledQuery("q", "text", (METHODS[0], METHODS[0]), ((), ())),
        lambda: PooledQuery("q", "text", METHODS, (tuple(map(str, range(101))), ())),
    ):
        with pytest.raises(InvalidRequest):
            wrong()
    assert judgement_id("i", "q", "d", "Ada") == judgement_id("i", "q", "d", "Ada")
    assert len({judgement_id(*key) for key in (("i", "q", "d", "a"), ("i", "q", "da", ""), ("iq", "", "d", "a"))}) == 3


@pytest.mark.parametrize(
    ("queries", "fix"),
    [([], "es-ttc judge pool articles QUERIES"), ([PooledQuery("q", "a text")], "es-ttc ui articles")],
)
def test_pools_without_grades_are_to_be_judged_and_not_made_again(queries: list[PooledQuery], fix: str) -> None:
    with pytest.raises(InvalidRequest, match=fix):
        Overview("articles", queries, []).collection()
