"""A real cluster of three nodes of one product, each of which may be killed and started again."""

import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from es_ttc.engine.node import cluster, process
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.engine.node.state import HOST
from es_ttc.settings import Settings
from tests.serving.client import call
from tests.support.elasticsearch import ElasticsearchDistribution

NODES = 3
PRODUCTS = ("opensearch", "elasticsearch")
START_SECONDS = 400.0
"""Three nodes start at once, on the few cores of one machine."""


class ThreeNodes:
    """The cluster; its nodes' addresses stay as they are.

    Args:
        product: One of `PRODUCTS`.
        name: The cluster's name; by default one of its own.
        heap: Java heap of each node.
        port: The first node's HTTP port, the others have the next ones; 0 for any free ones.
        owned: Whether it ends with this process.

    Attributes:
        urls: The nodes' addresses.
    """

    def __init__(
        self, product: str = "opensearch", *, name: str = "", heap: str = "384m", port: int = 0, owned: bool = True
    ) -> None:
        self._distribution = distribution_of(product)
        self._spec = NodeSpec(
            Settings().cache_dir,
            name or f"tests-{os.getpid()}-three-{uuid.uuid4().hex[:6]}",
            port or free_ports(NODES),
            heap=heap,
            owned=owned,
            short_lived=True,
            timeout=START_SECONDS,
        )
        self._cluster = cluster.start(self._spec, NODES, distribution=self._distribution)
        self.urls = self._cluster.urls

    @property
    def engine(self) -> str:
        """All addresses, as the setting ``engine`` takes them."""
        return ",".join(self.urls)

    def kill(self, number: int) -> None:
        """Kill a node without warning; its data stay."""
        node = self._cluster.nodes[number]
        identity = node.state.node
        found = identity.process() if identity else None
        assert found is not None
        found.kill()
        found.wait(30)
        node.stop()  # what watched it

    def restart(self) -> None:
        """Start the killed nodes again where they were, with their data, and wait until all are in the cluster."""
        self._cluster = cluster.start(self._spec, NODES, distribution=self._distribution)
        assert self._cluster.urls == self.urls

    def await_status(self, status: str = "green", *, node: int = 0, seconds: float = 120.0) -> None:
        """Wait until the cluster has a status."""
        deadline = time.monotonic() + seconds
        while True:
            reply = call(self.urls[node], "GET", f"/_cluster/health?wait_for_status={status}&timeout=5s")
            if reply.status == 200:
                return
            assert time.monotonic() < deadline, f"not {status} in {seconds:g} s: {reply.body!r}"

    def stop(self) -> None:
        """End it, and remove its data."""
        process.stop(self._spec.name, self._spec.cache_dir, drop_data=True)


@contextmanager
def three_nodes(product: str = "opensearch", *, heap: str = "384m", port: int = 0) -> Iterator[ThreeNodes]:
    """Run the cluster for a while."""
    running = ThreeNodes(product, heap=heap, port=port)
    try:
        yield running
    finally:
        running.stop()


def distribution_of(product: str) -> Distribution:
    """Return what nodes of a product are started from."""
    return OpenSearchDistribution() if product == "opensearch" else ElasticsearchDistribution()


def free_ports(count: int) -> int:
    """Return the first of several consecutive ports that nothing listens on."""
    while True:
        with ExitStack() as stack:
            first = 0
            try:
                for number in range(count):
                    probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                    probe.bind((HOST, first + number if first else 0))
                    first = first or probe.getsockname()[1]
            except (OSError, OverflowError):
                continue
        return first
