"""nnn and mmr through the gateway: bad input is a 400 or the first pass, never an exception; tuned parameters count."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.rescorers.tuned import as_json
from tests.serving.client import Reply, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import EVERYTHING
from tests.support.encoders import Spoilt
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

NOTHING = {"bool": {"must": [EVERYTHING], "filter": [{"term": {"group": "none of them"}}]}}
METHODS = ("nnn", "mmr")


def asked(url: str, index: str, method: str, query: dict[str, Any] | None = None, **section: Any) -> Reply:
    ours = {"method": method, "query_text": "which cat drinks milk?", **section}
    return search(url, index, {"query": query or EVERYTHING, "size": 5, "rescore": {"window_size": 50, "ttc": ours}})


@pytest.mark.parametrize("method", METHODS)
def test_a_filter_that_matches_nothing_is_an_empty_page(
    stack: SearchStack, encoder: Encoder, method: str, log: Callable[[], str]
) -> None:
    with gateway_to(stack.engine, encoder) as url:
        for section in ({}, {"detail": True}, {"on_error": "fail"}):
            reply = asked(url, stack.index, method, NOTHING, **section)
            assert reply.status == 200
            assert reply.ids == []
    assert no_exception(log())


@pytest.mark.parametrize("method", METHODS)
def test_a_query_of_zeros_leaves_the_first_pass_order(
    stack: SearchStack, encoder: Encoder, method: str, log: Callable[[], str]
) -> None:
    native = search(stack.engine, stack.index, {"query": EVERYTHING, "size": 50}).ids
    scored = [one for one in native if one != "d7"]  # which has no text
    with gateway_to(stack.engine, Spoilt(encoder, 0.0)) as url:
        reply = asked(url, stack.index, method, params={} if method == "nnn" else {"lambda": 0.0}, detail=True)
    assert reply.status == 200
    assert reply.json()["ttc"]["applied"] is True
    assert reply.ids == scored[:5]
    assert no_exception(log())


@pytest.mark.parametrize("method", METHODS)
def test_vectors_that_are_no_numbers_leave_the_first_pass_with_a_mark(
    stack: SearchStack, encoder: Encoder, method: str, log: Callable[[], str]
) -> None:
    native = search(stack.engine, stack.index, {"query": EVERYTHING, "size": 5}).ids
    with gateway_to(stack.engine, Spoilt(encoder, np.nan)) as url:
        reply = asked(url, stack.index, method)
        refused = asked(url, stack.index, method, on_error="fail")
    assert reply.status == 200
    assert reply.ids == native
    ttc = reply.json()["ttc"]
    assert ttc["applied"] is False
    assert "not finite" in ttc["reason"]
    assert refused.status == 500
    assert "not finite" in refused.reason
    assert no_exception(log())


def test_tuned_parameters_stand_in_for_those_that_a_request_leaves_out(
    stack: SearchStack, encoder: Encoder, tmp_path: Path
) -> None:
    tuned = {"l1": 0.05, "l2": 2.0}
    path = tmp_path / "nnn.json"
    path.write_bytes(as_json({"method": "nnn", "params": tuned, "data": "d", "split": "train", "encoder": None}))
    with gateway_to(stack.engine, encoder, tuned=(path,)) as url:
        reply = asked(url, stack.index, "nnn")
        assert reply.json()["ttc"]["tuned"] == tuned
        same = asked(stack.gateway, stack.index, "nnn", params=tuned)
        assert reply.scores == same.scores
        assert reply.ids == same.ids
        assert asked(url, stack.index, "nnn", params={"l1": 0.2}).json()["ttc"]["tuned"] == {"l2": 2.0}
        own = {"l1": 0.2, "l2": 0.1}
        assert "tuned" not in asked(url, stack.index, "nnn", params=own).json()["ttc"]
        assert "tuned" not in asked(url, stack.index, "mmr").json()["ttc"]
    assert "tuned" not in same.json()["ttc"]
    assert asked(stack.gateway, stack.index, "nnn").scores != same.scores


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Returns what was logged: by the standard library's loggers once a command has set them up, else on the screen."""
    caplog.set_level(logging.INFO)
    return lambda: "".join((*capsys.readouterr(), caplog.text))


def no_exception(log: str) -> bool:
    """Whether the log of a gateway that this test has started tells of answers, and of no exception."""
    return "answered" in log and "Traceback" not in log and "[error" not in log and "ERROR" not in log
