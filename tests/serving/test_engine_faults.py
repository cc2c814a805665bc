"""A real engine killed, restarted, frozen or slow while it is asked; a gateway killed while it answers."""

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from es_ttc.encoders.base import Encoder
from tests.serving.client import Reply, call, search
from tests.serving.conftest import make_index
from tests.serving.corpus import EVERYTHING, ttc_rescore
from tests.serving.relay import Passed, relay
from tests.support.gateway import gateway_to
from tests.support.own_node import OwnNode

pytestmark = pytest.mark.engine

BODY = {"query": EVERYTHING, "size": 20, "rescore": ttc_rescore()}


@pytest.fixture
def node(own_node: OwnNode) -> OwnNode:
    return own_node


@pytest.fixture(scope="module")
def index(killed_node: OwnNode, encoder: Encoder) -> str:
    name = f"test-faults-{uuid.uuid4().hex[:8]}"
    make_index(killed_node.url, name, encoder)
    return name


def test_an_engine_that_is_killed_while_searches_run_and_comes_back(
    node: OwnNode, index: str, encoder: Encoder
) -> None:
    with gateway_to(node.url, encoder, request_timeout=30) as gateway:
        before = search(gateway, index, BODY)
        assert before.json()["ttc"]["applied"] is True
        stop, replies = threading.Event(), list[Reply]()

        def ask() -> None:
            while not stop.is_set():
                replies.append(search(gateway, index, BODY))

        with ThreadPoolExecutor(4) as clients:
            asking = [clients.submit(ask) for _ in range(4)]
            node.kill()
            gone = search(gateway, index, BODY)
            stop.set()
            for one in asking:
                one.result()
        assert gone.status == 503
        assert gone.json()["error"]["type"] == "ttc_engine_unavailable_exception"
        assert node.url not in gone.reason  # no caller learns where the engine is
        for reply in replies:
            assert reply.status in (200, 503)
            if reply.status == 200 and reply.json()["ttc"]["applied"]:
                assert (reply.ids, reply.scores) == (before.ids, before.scores)
        assert call(gateway, "GET", "/_ttc/health").status == 200
        assert call(gateway, "GET", "/_ttc/ready").json()["engine"] is False
        assert search(gateway, index, {"query": EVERYTHING}).status == 503
        node.restart()
        after = search(gateway, index, BODY)
        assert (after.ids, after.scores) == (before.ids, before.scores)
        assert after.json()["ttc"]["applied"] is True
        assert call(gateway, "GET", "/_ttc/ready").json()["engine"] is True


def test_an_engine_that_stands_still_between_both_passes(node: OwnNode, index: str, encoder: Encoder) -> None:
    native = search(node.url, index, {"query": EVERYTHING, "size": 20})
    with relay(node.url) as between, gateway_to(between.url, encoder) as gateway:

        def freeze(request: Passed) -> None:
            if request.reads_features:
                freezing.enter_context(node.frozen())

        with ExitStack() as freezing:
            between.before = freeze
            late = search(gateway, index, BODY | {"rescore": ttc_rescore(timeout="400ms") | {"window_size": 20}})
        assert late.status == 200
        assert late.json()["ttc"]["applied"] is False
        assert "budget of 400 ms" in late.json()["ttc"]["reason"]
        assert (late.ids, late.scores) == (native.ids, native.scores)
        between.before = lambda _: None
        assert search(gateway, index, BODY).json()["ttc"]["applied"] is True


def test_an_engine_that_is_slow_with_the_first_pass_leaves_less_time_for_scoring(
    node: OwnNode, index: str, encoder: Encoder
) -> None:
    loop = "double x = 0; for (int i = 0; i < 900000; i++) { x += Math.sqrt(i); } return 1 + x * 0;"
    slow = {"script_score": {"query": EVERYTHING, "script": {"source": loop}}}
    with gateway_to(node.url, encoder) as gateway:
        reply = search(gateway, index, {"query": slow, "timeout": "25ms", "rescore": ttc_rescore(timeout="10s")})
        assert reply.status == 200
        assert reply.json()["ttc"]["applied"] is False
        assert "budget of 0 ms" in reply.json()["ttc"]["reason"]
        patient = search(gateway, index, {"query": slow, "rescore": ttc_rescore(timeout="10s")})
        assert patient.json()["ttc"]["applied"] is True


def test_a_call_of_ours_that_is_never_answered_ends_with_its_timeout(
    node: OwnNode, index: str, encoder: Encoder
) -> None:
    with relay(node.url) as between, gateway_to(between.url, encoder, request_timeout=0.5) as gateway:

        def freeze(request: Passed) -> None:
            if request.reads_features:
                freezing.enter_context(node.frozen())

        with ExitStack() as freezing:
            between.before = freeze
            refused = search(gateway, index, BODY | {"rescore": ttc_rescore(on_error="fail") | {"window_size": 20}})
        assert refused.status == 503
        assert refused.json()["error"]["type"] == "ttc_engine_unavailable_exception"
        assert "did not answer in time" in refused.reason


def test_a_worker_that_is_killed_while_it_answers_is_started_again(node: OwnNode, index: str) -> None:
    asked, release = threading.Event(), threading.Event()

    def hold(request: Passed) -> None:
        if request.reads_features:
            asked.set()
            assert release.wait(60)

    with relay(node.url) as between, serving(between.url) as (process, url):
        between.before = hold
        with ThreadPoolExecutor(1) as clients:
            waiting = clients.submit(search, url, index, BODY | {"rescore": ttc_rescore(timeout="50s")})
            assert asked.wait(60)
            [worker] = psutil.Process(process.pid).children()
            worker.kill()
            with pytest.raises(OSError) as broken:  # noqa: PT011 - a reset or an empty answer, as the system has it
                waiting.result(30)
            assert not isinstance(broken.value, TimeoutError)
        release.set()
        assert search(node.url, index, {"query": EVERYTHING}).status == 200
        between.before = lambda _: None
        served = search(url, index, BODY | {"rescore": ttc_rescore(timeout="50s")})
        assert served.json()["ttc"]["applied"] is True


@contextmanager
def serving(engine: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A gateway with one worker."""
    command = [sys.executable, "-m", "es_ttc", "serve", "--port", "0", "--workers", "1", "--encoder", "minilm@onnx"]
    with subprocess.Popen(
        [*command, "--engine", engine, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.rstrip().endswith("}"):
                text += process.stdout.readline()
            yield process, json.loads(text)["url"]
        finally:
            process.kill()
