from typing import Any

import pytest

from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.tuning import given_params, grid_candidates
from es_ttc.rescorers.registry import load, parse_params


def parsed(**raw: Any) -> dict[str, Any]:
    return parse_params(load("spectral"), raw).model_dump(mode="json", exclude_unset=True)


def test_weights_follow_their_scales() -> None:
    given = parsed(pool="mean", scales=["mean", 5, 1], scale_weights=[3, 2, 0])
    assert given == {"pool": "mean", "scales": [1, 5, "mean"], "scale_weights": [0, 2, 3]}
    assert parsed(**given) == given


def test_tune_tries_pools_and_weights_of_the_given_scales() -> None:
    tried = [given_params(method) for method in grid_candidates("spectral", {"scales": [1, 5, "mean"]})]
    assert tried[0] == {"scales": [1, 5, "mean"]}
    assert all(params["scales"] == [1, 5, "mean"] for params in tried)
    weights = [params["scale_weights"] for params in tried if params.get("pool") == "mean"]
    assert [1, 1, 1] in weights
    assert weights[0][0] > weights[0][2]
    assert weights[-1][0] < weights[-1][2]
    assert {params["temperature"] for params in tried if params.get("pool") == "softmax"} > {0.05}
    only = [given_params(method) for method in grid_candidates("knn:spectral", {"pool": "softmax", "candidates": 5})]
    assert {params["pool"] for params in only} == {"softmax"}
    with pytest.raises(InvalidRequest, match="no values"):
        grid_candidates("spectral", {"pool": "max"})
