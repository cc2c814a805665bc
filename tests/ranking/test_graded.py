"""Metrics of many rankings at once against trec_eval's, one ranking at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.lab.ranking.graded import values_of

Judgements = list[tuple[int, bool]]


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), min_size=1, max_size=4),
    st.sampled_from(["ndcg@1", "ndcg@5", "ndcg@30", "recall@3", "success@2", "comp@4", "map", "mrr"]),
)
def test_values_are_those_of_trec_eval(queries: list[Judgements], metric: str) -> None:
    qrels = {f"q{q}": {f"d{d}": grade for d, (grade, _) in enumerate(one)} for q, one in enumerate(queries)}
    rankings = {
        f"q{q}": [f"d{d}" for d, (_, found) in enumerate(one) if found] + ["unjudged"] for q, one in enumerate(queries)
    }
    longest = max(len(ranking) for ranking in rankings.values())
    ranked = np.zeros((len(queries), longest), np.int64)
    for row, (query, ranking) in zip(ranked, rankings.items(), strict=True):
        row[: len(ranking)] = [qrels[query].get(document, 0) for document in ranking]
    judged = [np.array(list(grades.values())) for grades in qrels.values()]
    np.testing.assert_allclose(values_of(metric, ranked, judged), score_by(metric, qrels, rankings), atol=1e-6)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown metric \[ndcg\]"):
        values_of("ndcg", np.zeros((1, 1), np.int64), [np.zeros(1, np.int64)])
