"""Rewriters among the evaluation's methods: through an engine, and refused in memory."""

from dataclasses import replace
from pathlib import Path

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.datasets import load_collection
from es_ttc.lab.evaluation.methods import names, resolve
from es_ttc.lab.evaluation.plan import EvaluationPlan, run_plan
from es_ttc.rewriters.rm3 import relevance_model
from es_ttc.settings import EngineSettings
from tests.support.llm import scripted_model_beside

ON_ONE_ENGINE = True


@pytest.mark.engine
def test_rewriters_through_an_engine(
    engine_url: str, encoder: Encoder, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words that stand in each query's relevant document bring it up; words that stand nowhere change nothing."""
    whole = load_collection(shared_data / "cranfield")
    kept = [query for query in whole.queries if any(whole.qrels[query].values())][:6]
    relevant = {query: max(whole.qrels[query], key=whole.qrels[query].__getitem__) for query in kept}
    chosen = {*relevant.values(), *(one.id for one in whole.documents[:60])}
    small = replace(
        whole,
        documents=tuple(one for one in whole.documents if one.id in chosen),
        queries={query: whole.queries[query] for query in kept},
        qrels={query: {relevant[query]: 1} for query in kept},
    )
    texts = {one.id: one.source["text"] for one in small.documents}

    def answer(body: dict[str, object]) -> str:
        asked = str(body["messages"])
        query = next(query for query, text in small.queries.items() if " ".join(text.split()) in asked)
        return ", ".join(texts[relevant[query]].split()[-12:])

    with scripted_model_beside(answer) as model:
        monkeypatch.setenv("ES_TTC_LLM_URL", model.url)
        plan = EvaluationPlan(
            methods=resolve(["bm25", "sira", "rm3"], {"sira": {"tau": 0.3, "weight": 1}, "rm3": {"tau": 0.3}}),
            baseline="bm25",
            engine=EngineSettings(engine=engine_url),
        )
        result, _ = run_plan(plan, small, encoder)
    scores = {name: method.scores.mean("mrr") for name, method in result.methods.items()}
    assert scores["sira"] > scores["bm25"]
    assert scores["rm3"] > 0
    assert len(model.asked) == len(kept)


def test_rewriters_in_memory_are_refused(shared_data: Path) -> None:
    plan = EvaluationPlan(methods=resolve(["bm25", "rm3"]))
    with pytest.raises(InvalidRequest, match=r"\[rm3\]"):
        run_plan(plan, load_collection(shared_data / "limit-small"))


def test_rewriters_are_methods_by_name() -> None:
    assert {"sira", "rm3"} <= set(names())


def test_the_relevance_model_of_two_documents() -> None:
    assert relevance_model([3.0, 1.0], [{"a": 1, "b": 1}, {"b": 4}]) == pytest.approx({"a": 0.375, "b": 0.625})
