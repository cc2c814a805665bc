"""A node with our plugin, the gateway that is its sidecar, and the corpus in an index for each way it is stored."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from pydantic import SecretStr

from es_ttc.encoders import CachedEncoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.plugin import Plugin
from es_ttc.index.mappings.spec import SpanGrid
from tests.conftest import PRODUCTS
from tests.serving.client import call
from tests.serving.conftest import SIDECAR_TOKEN, make_index
from tests.support.agent import GuardedOpenSearch
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.gateway import gateway_to
from tests.support.own_node import OwnNode
from tests.support.plugin import Sidecar, built, sidecar_address

CODED = "corpus-int2"
DOC_VALUES = "corpus-doc-values"
SHARDED = "corpus-of-five-shards"
NESTED = "corpus-nested"


@dataclass(frozen=True)
class Plugged:
    """A node with the plugin.

    Attributes:
        product: ``opensearch`` or ``elasticsearch``.
        node: The node.
        gateway: The gateway before it, which is its sidecar too.
        sidecar: What the node asks.
    """

    product: str
    node: OwnNode
    gateway: str
    sidecar: Sidecar

    @property
    def url(self) -> str:
        """The node's address."""
        return self.node.url

    def stats(self) -> dict[str, int]:
        """What the node has counted, reasons among it."""
        counted = call(self.url, "GET", "/_plugins/_ttc/stats").json()["ttc"]
        return {**counted, **counted["first_pass_reasons"]}


@pytest.fixture(scope="session")
def encoder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The shared encoder; the corpus is encoded once."""
    return CachedEncoder(encoder, tmp_path_factory.mktemp("encodings"))


@contextmanager
def _plugged(product: str, make: Callable[[Plugin], Distribution], encoder: Encoder) -> Iterator[Plugged]:
    archive = built(product)
    with sidecar_address() as sidecar:
        more = {"timeout": "20s", "max_timeout": "30s", "breaker.failures": "3", "breaker.pause": "300ms"}
        plugin = Plugin.of(archive, product, sidecar.url, SecretStr(SIDECAR_TOKEN), **more)
        node = OwnNode("plugin", make(plugin))
        try:
            make_index(node.url, CODED, encoder, shards=1, codec="int2")
            make_index(node.url, DOC_VALUES, encoder, shards=1)
            make_index(node.url, SHARDED, encoder, shards=5)
            make_index(node.url, NESTED, encoder, shards=1, tokens="nested", spans=(SpanGrid(10, 5),))
            with gateway_to(node.url, encoder, sidecar_token=SecretStr(SIDECAR_TOKEN)) as gateway:
                sidecar.gateway = gateway
                yield Plugged(product, node, gateway, sidecar)
        finally:
            node.stop()


@pytest.fixture(scope="session")
def opensearch_plugged(encoder: Encoder) -> Iterator[Plugged]:
    with _plugged("opensearch", GuardedOpenSearch, encoder) as plugged:
        yield plugged


@pytest.fixture(scope="session")
def elasticsearch_plugged(encoder: Encoder) -> Iterator[Plugged]:
    with _plugged("elasticsearch", ElasticsearchDistribution, encoder) as plugged:
        yield plugged


@pytest.fixture(scope="session", params=PRODUCTS)
def plugged(request: pytest.FixtureRequest) -> Plugged:
    """A node with the plugin, of one product after the other."""
    found: Plugged = request.getfixturevalue(f"{request.param}_plugged")
    return found
