"""A real node of a test's own, which may be killed, started again with its data, and stopped in the middle."""

import os
import random
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil

from es_ttc.engine.node import process
from es_ttc.engine.node.distribution import Distribution, NodeFolder
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.engine.node.state import HOST, log_tail
from es_ttc.settings import Settings
from tests.support.memory import data_folder


class OwnNode:
    """A node with an address that stays.

    Args:
        name: What it is for.
        distribution: The product; OpenSearch where none is given.
    """

    def __init__(self, name: str, distribution: Distribution | None = None) -> None:
        self._distribution = distribution
        name = f"tests-{os.getpid()}-{name}-{uuid.uuid4().hex[:6]}"
        self._spec = NodeSpec(
            cache_dir=Settings().cache_dir,
            name=name,
            data_dir=data_folder(name),
            port=free_ports(),
            heap="512m",
            owned=True,
            short_lived=True,
            keep_data=True,
        )
        self._node = process.start_node(self._spec, distribution=distribution)
        self.url = self._node.url

    @property
    def lives(self) -> bool:
        """Whether its process runs."""
        identity = self._node.state.node
        return identity is not None and identity.process() is not None

    def kill(self) -> None:
        """Kill it without warning; its data stay."""
        kill(self._node)

    def restart(self) -> None:
        """Start it again where it was, with its data."""
        self._node.stop()
        self._node = process.start_node(self._spec, distribution=self._distribution)

    @property
    def folder(self) -> NodeFolder:
        """Where it keeps its own."""
        return process.node_folder(self._spec.name, self._spec.cache_dir)

    def log(self) -> str:
        """Return what it has said since its last start."""
        return log_tail(self.folder.log, 100_000)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it take requests, and answer none."""
        stopped = processes_of(self._node)
        for one in stopped:
            one.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for one in stopped:
                one.send_signal(signal.SIGCONT)

    def limit_files(self, size: int | None) -> None:
        """Let every write beyond this many bytes of a file fail in the node, as on a full disk; None ends that.

        The limit is set as the node's own user: not every container's root may set it for others.
        """
        process = processes_of(self._node)[-1]
        user = process.uids().real
        as_user = {} if user == os.geteuid() else {"user": user, "group": process.gids().real, "extra_groups": []}
        limit = "unlimited" if size is None else str(size)
        command = ["prlimit", f"--pid={process.pid}", f"--fsize={limit}:unlimited"]
        subprocess.run(command, check=True, cwd="/", **as_user)  # type: ignore[call-overload]

    def stop(self) -> None:
        """End it, and remove its data."""
        self._node.stop(drop_data=True)


def kill(node: process.Node) -> None:
    """Kill a node without warning; its data stay."""
    killed = processes_of(node)
    for one in killed:
        one.kill()
    _, left = psutil.wait_procs(killed, timeout=30)
    assert not left


def processes_of(node: process.Node) -> list[psutil.Process]:
    """Return a node's processes; Elasticsearch's first one starts the node, which would end by itself, but later."""
    found = node.state.node.process() if node.state.node else None
    assert found is not None
    return [found, *found.children(recursive=True)]


def free_ports(count: int = 1) -> int:
    """Return the first of some consecutive free ports that the system gives to nobody while the nodes are down."""
    while True:
        first = random.SystemRandom().randrange(20_000, 32_000)
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind((HOST, port))
            return first
