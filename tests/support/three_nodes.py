"""A real cluster of three nodes of OpenSearch, each of which may be killed and started again."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from es_ttc.engine.node import cluster
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.settings import Settings

NODES = 3


class ThreeNodes:
    """The cluster; its nodes' addresses stay as they are.

    Attributes:
        urls: The nodes' addresses.
    """

    def __init__(self, heap: str = "384m") -> None:
        name = f"tests-{os.getpid()}-three-{uuid.uuid4().hex[:6]}"
        self._spec = NodeSpec(Settings().cache_dir, name, 0, heap=heap, owned=True, short_lived=True)
        self._cluster = cluster.start(self._spec, NODES)
        self.urls = self._cluster.urls

    def kill(self, number: int) -> None:
        """Kill a node without warning; its data stay."""
        identity = self._cluster.nodes[number].state.node
        found = identity.process() if identity else None
        assert found is not None
        found.kill()
        found.wait(30)

    def stop(self) -> None:
        """End it, and remove its data."""
        self._cluster.stop(drop_data=True)


@contextmanager
def three_nodes() -> Iterator[ThreeNodes]:
    """Run the cluster for a while."""
    running = ThreeNodes()
    try:
        yield running
    finally:
        running.stop()
