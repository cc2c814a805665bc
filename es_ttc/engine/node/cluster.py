"""Several nodes of one cluster on this machine: started together, each in a process of its own.

The first node has the cluster's name, the others a number after it. Every node knows all transport ports, so a cluster
recovers after any of its nodes was stopped or killed, as soon as most of them run again.
"""

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from es_ttc.engine.node import account, process
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.process import Node
from es_ttc.engine.node.spec import ClusterSpec, NodeSpec, ProgressCallback, ignore
from es_ttc.engine.node.state import HOST, NodeState
from es_ttc.errors import InvalidRequest, NodeError

MAX_CLUSTER_NODES = 9


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster whose nodes all answer. As a context manager it is stopped at the end."""

    name: str
    nodes: Sequence[Node]

    @property
    def urls(self) -> list[str]:
        """The nodes' addresses."""
        return [node.url for node in self.nodes]

    @property
    def reused(self) -> bool:
        """Whether all nodes were running already."""
        return all(node.reused for node in self.nodes)

    def stop(self, *, drop_data: bool = False) -> None:
        """Stop every node."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.stop(drop_data=drop_data), self.nodes))

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_cluster(
    spec: NodeSpec, count: int, on_progress: ProgressCallback = ignore, distribution: Distribution | None = None
) -> Cluster:
    """Return a cluster of connected nodes, started if need be; `spec` is the first's, the others use the next ports."""
    spec.check()
    if not 2 <= count <= MAX_CLUSTER_NODES:
        raise InvalidRequest(f"a cluster of [{count}] nodes cannot be started here: give 2 to {MAX_CLUSTER_NODES}")
    product = distribution or OpenSearchDistribution()
    product.install(account.base_folder(spec.cache_dir, account.run_as()), on_progress)  # once for all of them
    specs = _specs(spec, count)
    with ThreadPoolExecutor(count) as pool:
        waiting = [
            pool.submit(process.start_node, one, on_progress if number == 0 else ignore, product)
            for number, one in enumerate(specs)
        ]
    started = [one.result() for one in waiting if one.exception() is None]
    error = next((one.exception() for one in waiting if one.exception() is not None), None)
    cluster = Cluster(spec.name, started)
    try:
        if error is not None:
            raise error
        _await_all(cluster, spec.timeout)
    except BaseException:
        for node in started:
            if not node.reused:
                node.stop()
        raise
    return cluster


def member_names(name: str, count: int) -> tuple[str, ...]:
    """Return the names of a cluster's nodes."""
    return (name, *(f"{name}-{number}" for number in range(2, count + 1)))


def _specs(spec: NodeSpec, count: int) -> list[NodeSpec]:
    names = member_names(spec.name, count)
    states = [_stored_state(name, spec.cache_dir) for name in names]
    for name, state in zip(names, states, strict=True):
        if state is not None and tuple(state.members) != names:
            actual = f"a cluster of {len(state.members)} nodes" if state.members else "a node by itself"
            raise InvalidRequest(
                f"node [{name}] was made as {actual}, not as one of {count}: choose another --name, or remove it with "
                f"`es-ttc engine down --name {state.members[0] if state.members else name} --drop-data`"
            )
    transports = _transports(states)
    seeds = tuple(f"{HOST}:{port}" for port in transports)
    return [
        replace(
            spec,
            name=name,
            port=spec.port + number if spec.port else spec.port,
            data_dir=spec.data_dir / name if spec.data_dir else None,
            cluster=ClusterSpec(spec.name, names, seeds, transports[number]),
        )
        for number, name in enumerate(names)
    ]


def _stored_state(name: str, cache_dir: Path) -> NodeState | None:
    return NodeState.read(process.node_folder(name, cache_dir).state)


def _transports(states: Sequence[NodeState | None]) -> list[int]:
    """Return a transport port for each node: that of a running one, else a free one."""
    probes: list[socket.socket] = []
    try:
        ports = []
        for state in states:
            if state is not None and state.lives and state.transport:
                ports.append(state.transport)
                continue
            probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            probes.append(probe)
            probe.bind((HOST, 0))
            ports.append(probe.getsockname()[1])
        return ports
    finally:
        for probe in probes:
            probe.close()


def _await_all(cluster: Cluster, timeout: float) -> None:
    """Wait until every node is in the cluster."""
    count = len(cluster.nodes)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if all(process.is_healthy(node.port, "5s", wait_for_nodes=count) for node in cluster.nodes):
            return
        time.sleep(process.POLL_SECONDS)
    raise NodeError(f"the {count} nodes of cluster [{cluster.name}] did not find each other within {timeout:.0f} s")
