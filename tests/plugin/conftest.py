"""A node with our plugin, the gateway that is its sidecar, and the corpus in an index for each way it is stored."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from es_ttc.common import maven
from es_ttc.common.files import link_or_copy, make_folder
from es_ttc.common.maven import Artifact, Pinned
from es_ttc.encoders import CachedEncoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.node import account, parts
from es_ttc.engine.node.distribution import Command, Distribution, NodeFolder
from es_ttc.engine.node.java import Java
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.plugin import Plugin
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.index.mappings.spec import SpanGrid
from es_ttc.settings import Settings
from tests.conftest import PRODUCTS
from tests.serving.client import call
from tests.serving.conftest import SIDECAR_TOKEN, make_index
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.gateway import gateway_to
from tests.support.own_node import OwnNode
from tests.support.plugin import Sidecar, built, sidecar_address

AGENT = Pinned(
    Artifact("org.opensearch", "opensearch-agent", "3.6.0"),
    "b5f40ea6f7750eb9e88278b2ad1d4b108c157249868562c0914ec1fd4220af32",
    21_479,
)
BYTE_BUDDY = Pinned(
    Artifact("net.bytebuddy", "byte-buddy", "1.17.7"),
    "3575dcb8a98faf943d3c1595c47a16047c4fce8a83ebbb26262f1a2f67546357",
    9_015_334,
)
BOOTSTRAP = Artifact("org.opensearch", "opensearch-agent-bootstrap", "3.6.0")


class GuardedOpenSearch(OpenSearchDistribution):
    """OpenSearch whose code is held to its policies."""

    def command(self, home: Path, folder: NodeFolder, java: Java, spec: NodeSpec) -> Command:
        """Return the command, with the agent and the jars that it wants beside it."""
        cache = account.base_folder(Settings().cache_dir, account.run_as()) / "artifacts"
        files = maven.fetch([AGENT, BYTE_BUDDY, parts.read_lock()[BOOTSTRAP]], cache)
        beside = make_folder(folder.path / "agent")
        for file in files.values():
            if not (beside / file.name).exists():
                link_or_copy(file, beside / file.name)
        command = super().command(home, folder, java, spec)
        program, *arguments = command.arguments
        agent = f"-javaagent:{beside / AGENT.artifact.filename}"
        return dataclasses.replace(command, arguments=(program, agent, *arguments))


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


@pytest.fixture(autouse=True)
def revived(request: pytest.FixtureRequest) -> None:
    """A node that a test before left dead is started again, so that one failure is one."""
    if "plugged" in request.fixturenames:
        node: OwnNode = request.getfixturevalue("plugged").node
        if not node.lives:
            node.restart()
