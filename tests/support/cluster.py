"""Two real nodes of one product in one cluster, with a repository for snapshots; for what one node cannot show."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from es_ttc.engine.node import account, process
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.files import make_folder, remove
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.settings import Settings
from tests.serving.client import call
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.shared_nodes import await_licence

CACHE = Settings().cache_dir
MULTI = {"opensearch": "zen", "elasticsearch": "multi-node"}
"""What each product calls the discovery of other nodes."""


class _OpenSearch(OpenSearchDistribution):
    def __init__(self, extra: Mapping[str, str]) -> None:
        super().__init__()
        self._extra = extra

    def settings(self) -> Mapping[str, str]:
        return {**super().settings(), **self._extra}


class _Elasticsearch(ElasticsearchDistribution):
    def __init__(self, extra: Mapping[str, str]) -> None:
        super().__init__()
        self._extra = extra

    def settings(self) -> Mapping[str, str]:
        return {**super().settings(), "xpack.license.self_generated.type": "trial", **self._extra}


@dataclass
class Cluster:
    """A cluster of a first node, which is its master, and a second one, which only holds data.

    Attributes:
        product: ``opensearch`` or ``elasticsearch``.
        first: Its address.
    """

    product: str
    _first: process.Node = field(init=False)
    _second: process.Node | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._first = self._start("first", self._of_first())
        if self.product == "elasticsearch":
            await_licence(self.first)

    @property
    def first(self) -> str:
        """The first node's address."""
        return self._first.url

    @property
    def second(self) -> str:
        """The second node's address; it runs."""
        assert self._second is not None
        return self._second.url

    def start_second(self) -> None:
        """Start the second node, with the data that it had, unless it runs."""
        if self._second is not None:
            return
        [node] = call(self.first, "GET", "/_nodes/_local/transport").json()["nodes"].values()
        seed = node["transport"]["publish_address"]
        self._second = self._start("second", {"discovery.seed_hosts": seed, "node.roles": "data"})
        self.wait(nodes=2)

    def stop_second(self) -> None:
        """Stop the second node; its data stay."""
        assert self._second is not None
        self._second.stop()
        self._second = None
        self.wait(nodes=1)

    def restart(self) -> None:
        """Stop both nodes and start them again, with the data that they had."""
        self.stop_second()
        self._first.stop()
        self._first = self._start("first", self._of_first())
        self.start_second()

    def wait(self, *, nodes: int | None = None, status: str | None = None) -> None:
        """Wait for `_cluster/health` to show a number of nodes, a status."""
        wanted = {"wait_for_nodes": nodes, "wait_for_status": status, "wait_for_no_relocating_shards": "true"}
        asked = urlencode({"timeout": "25s", **{name: value for name, value in wanted.items() if value}})
        for _ in range(8):
            reply = call(self.first, "GET", f"/_cluster/health?{asked}")
            if reply.status == 200:
                return
        raise AssertionError(f"the cluster does not get there: {reply.json()}")

    def remove(self) -> None:
        """Stop both nodes and drop what they wrote."""
        for node in (self._second, self._first):
            if node is not None:
                node.stop(drop_data=True)
        process.stop(self._name("second"), CACHE, drop_data=True)
        remove([process.node_folder(self._name("second"), CACHE).path, self._repositories()])

    def _name(self, part: str) -> str:
        return f"tests-{os.getpid()}-{self.product[:4]}-{part}"

    def _repositories(self) -> Path:
        return account.base_folder(CACHE, account.run_as()) / f"{self._name('repositories')}"

    def _of_first(self) -> Mapping[str, str]:
        return {"cluster.initial_master_nodes": self._name("first")}

    def _start(self, part: str, extra: Mapping[str, str]) -> process.Node:
        repositories = make_folder(self._repositories())
        account.give(repositories, account.run_as())
        settings = {
            "cluster.name": self._name("cluster"),
            "discovery.type": MULTI[self.product],
            "discovery.seed_hosts": "",
            "path.repo": str(repositories),
            **extra,
        }
        made: Distribution = _OpenSearch(settings) if self.product == "opensearch" else _Elasticsearch(settings)
        spec = NodeSpec(CACHE, name=self._name(part), port=0, heap="512m", owned=True, short_lived=True)
        return process.start(spec, distribution=made)
