"""Fixtures that all tests share: real nodes of both products, a fresh index, the real encoder, a model, data.

The nodes are started once a run and thrown away at its end. ES_TTC_TEST_OPENSEARCH and ES_TTC_TEST_ELASTICSEARCH name
nodes that run already and are used instead.
"""

import json
import logging
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.node import process
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.errors import ConfigurationError
from es_ttc.settings import Settings
from tests.support.elasticsearch import ElasticsearchDistribution

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
PRODUCTS = ("opensearch", "elasticsearch")


class Nodes:
    """The nodes of this run: each is had at the first call for it."""

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self._started: list[process.Node] = []

    def url(self, distribution: Distribution) -> str:
        product = distribution.product
        if product not in self.urls:
            self.urls[product] = os.environ.get(f"ES_TTC_TEST_{product.upper()}") or self._start(distribution)
        return self.urls[product]

    def _start(self, distribution: Distribution) -> str:
        spec = NodeSpec(
            cache_dir=Settings().cache_dir,
            name=f"tests-{os.getpid()}-{distribution.product}",
            port=0,
            owned=True,
            short_lived=True,
            keep_data=False,
        )
        node = process.start(spec, distribution=distribution)
        self._started.append(node)
        if distribution.product == "elasticsearch":
            await_licence(node.url)
        return node.url

    def stop(self) -> None:
        for node in self._started:
            node.stop()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Undo what a command or a gateway run inside a test has made of the process's logging."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    running = Nodes()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def opensearch_url(nodes: Nodes) -> str:
    """The address of a real OpenSearch."""
    return nodes.url(OpenSearchDistribution())


@pytest.fixture(scope="session")
def elasticsearch_url(nodes: Nodes) -> str:
    """The address of a real Elasticsearch; the test is skipped where no JDK can run one, which fails on CI."""
    try:
        return nodes.url(ElasticsearchDistribution())
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Elasticsearch must be tested on CI: {error}")
        pytest.skip(f"no Elasticsearch: {error}")


@pytest.fixture(scope="session", params=PRODUCTS)
def engine_url(request: pytest.FixtureRequest) -> str:
    """The address of a real node, of one product after the other."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def index_name(nodes: Nodes) -> Iterator[str]:
    """A name that no index has; afterwards every index whose name begins with it is deleted."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    for url in nodes.urls.values():
        for index in _call("GET", f"{url}/_cat/indices/{name}*?format=json&h=index&expand_wildcards=all"):
            _call("DELETE", f"{url}/{index['index']}")


def await_licence(url: str) -> None:
    """Wait for the licence, which a new cluster gives itself only after it answers."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            _call("GET", f"{url}/_license")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            time.sleep(0.2)
        else:
            return
    pytest.fail("the new Elasticsearch gives itself no licence")


def _call(method: str, url: str) -> Any:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """The real MiniLM, on ONNX Runtime."""
    from es_ttc.encoders import load_encoder

    return load_encoder("minilm@onnx")


@pytest.fixture(scope="session")
def llm_url() -> Iterator[str]:
    """The base URL of a real, small language model; a base model, to be asked by completions.

    It is llama.cpp's server, or under `make test-vllm` vLLM's.
    """
    from es_ttc.llm.local import running_llm
    from tests.support.vllm import VARIABLE, vllm

    with vllm(python) if (python := os.environ.get(VARIABLE)) else running_llm() as url:
        yield url


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of BEIR data sets beside the repository; the test is skipped where there is none."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no data sets: {SHARED_DATA.name} is not beside the repository")
    return SHARED_DATA
