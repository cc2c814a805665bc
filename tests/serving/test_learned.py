"""A model of trees on real engines: its ranking, what it says, and names that are refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.rescorers.learned.model import serve_from
from es_ttc.rescorers.learned.rescorer import LearnedParams, LearnedRescorer
from tests.rescorers.test_learned import stump, written
from tests.serving.client import search
from tests.serving.conftest import Behind
from tests.serving.test_blend import WINDOW, blended, union_in_memory


@pytest.fixture(autouse=True)
def _nothing_served() -> Iterator[None]:
    serve_from(None)
    yield
    serve_from(None)


def learned(**params: Any) -> dict[str, Any]:
    return blended(size=WINDOW, method="learned", params=params, detail=True)


def test_the_ranking_is_the_models_own_over_the_union(behind: Behind, encoder: Encoder, tmp_path: Path) -> None:
    written(tmp_path, "mine", stump())
    serve_from(tmp_path)
    query, window = union_in_memory(encoder, behind, WINDOW)
    values = LearnedRescorer().score(query, window, LearnedParams())
    expected = dict(zip(window.ids, values.tolist(), strict=True))
    reply = search(behind.gateway, behind.index, learned())
    assert reply.status == 200, reply.body
    told = reply.json()["ttc"]
    assert (told["method"], told["model"], told["applied"]) == ("learned", "mine", True)
    assert told["scored"] == len(expected)
    assert told["signals"] == ["lexical", "dense", "spectral", "late_interaction"]
    best = sorted(expected, key=lambda name: -expected[name])[:WINDOW]
    assert reply.ids == best
    assert reply.scores == pytest.approx([expected[name] for name in best], abs=1e-4)
    signals = reply.json()["hits"]["hits"][0]["_ttc"]["signals"]
    assert set(signals) == set(told["signals"])


def test_a_request_names_a_model_and_nothing_else(behind: Behind, tmp_path: Path) -> None:
    reply = search(behind.gateway, behind.index, learned())
    assert reply.status == 400
    assert "train rank" in reply.reason
    path = written(tmp_path, "mine", stump())
    serve_from(tmp_path)
    for wrong in ("mien", str(path), "../mine", "http://127.0.0.1/mine.json"):
        reply = search(behind.gateway, behind.index, learned(model=wrong))
        assert reply.status == 400
        assert f"unknown model [{wrong}]" in reply.reason
