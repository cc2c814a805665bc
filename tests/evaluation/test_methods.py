"""Methods by name and their parameters."""

import pytest

from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.methods import Bm25Params, names, resolve, retrieval
from es_ttc.lab.evaluation.plan import EvaluationPlan
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.registry import load


def test_every_registered_method_is_one_of_one_kind() -> None:
    assert names()[:3] == ("bm25", "dense", "hybrid")
    assert {"maxsim", "spectral", "knn:nnn"} <= set(names())
    for method in resolve(names()):
        searches = method.name in ("bm25", "dense", "hybrid")
        parts = (method.rescorer, method.retriever, method.rewriter, method.strategy)
        assert [searches, *(part is not None for part in parts)].count(True) == 1


def test_methods_keep_their_order_and_come_once() -> None:
    assert [method.name for method in resolve(["spectral", "bm25", "spectral"])] == ["spectral", "bm25"]


def test_rescorers_are_the_objects_that_serve_queries() -> None:
    [method] = resolve(["spectral"], {"spectral": {"scales": [1, 5]}})
    assert method.rescorer is load("spectral")
    assert method.params.model_dump()["scales"] == (1.0, 5.0)


def test_retrieval_takes_the_parameters_that_were_given() -> None:
    known = retrieval(resolve(["spectral", "bm25"], {"bm25": {"k1": 0.9}}))
    assert set(known) == {"bm25", "dense", "hybrid"}
    assert known["bm25"].params == Bm25Params(k1=0.9)


def test_a_plan_asks_for_no_more_than_its_methods_need() -> None:
    assert not EvaluationPlan(resolve(["bm25"])).needs_encoder
    assert EvaluationPlan(resolve(["dense"])).features == {Feature.POOLED}
    assert EvaluationPlan(resolve(["hybrid"])).features == {Feature.POOLED}
    assert {Feature.POOLED, Feature.TOKENS, Feature.NORMS} <= EvaluationPlan(resolve(["spectral"])).features


def test_a_baseline_that_is_not_evaluated_is_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidRequest, match=r"\[dense\]"):
        EvaluationPlan(resolve(["bm25"]), baseline="dense")


def test_retrievers_stand_behind_the_name_of_their_hook() -> None:
    rescorer, retriever = resolve(["nnn", "knn:nnn"], {"knn:nnn": {"rounds": 3}})
    assert rescorer.retriever is None
    assert retriever.rescorer is None
    assert (retriever.name, retriever.params.model_dump()["rounds"]) == ("knn:nnn", 3)
    assert retrieval([retriever]).keys() == {"bm25", "dense", "hybrid"}
    with pytest.raises(InvalidRequest, match=r"did you mean \[knn:nnn\]"):
        resolve(["knn:nn"])
