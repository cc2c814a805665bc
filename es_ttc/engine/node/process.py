"""Start, find and stop nodes.

A node has a name; its folder below the cache contains its configuration, data and logs. Starting a name that already
runs returns the running node. A node that is `owned` ends with the process that started it, even if that is killed.
"""

import dataclasses
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

import psutil

from es_ttc.common.files import locked, make_folder, remove
from es_ttc.common.private_files import open_private
from es_ttc.engine.node import account
from es_ttc.engine.node.configuration import held_by, prepare_configuration
from es_ttc.engine.node.distribution import Command, Distribution, NodeFolder
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.spec import NodeProgress, NodeSpec, ProgressCallback, check_node_name, ignore
from es_ttc.engine.node.state import HOST, NodeState, log_tail, open_folder, read_port
from es_ttc.engine.node.supervisor import GRACE_SECONDS, Launch, ProcessId
from es_ttc.errors import InvalidRequest, NodeError

POLL_SECONDS = 0.1
ANSWER_SECONDS = 10
LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class Node:
    """A node that answers. As a context manager it is stopped at the end, unless it was running before."""

    state: NodeState
    folder: NodeFolder
    port: int
    reused: bool = False

    @property
    def url(self) -> str:
        """The node's address."""
        return f"http://{HOST}:{self.port}"

    def stop(self, *, drop_data: bool = False) -> None:
        """Stop it; data that are not to be kept are removed in any case."""
        _stop(self.state, self.folder, drop_data=drop_data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.reused:
            self.stop()


def start_node(
    spec: NodeSpec, on_progress: ProgressCallback = ignore, distribution: Distribution | None = None
) -> Node:
    """Return a node that answers; start it unless one of this name is running."""
    spec.check()
    product = distribution or OpenSearchDistribution()
    user = account.run_as()
    base = account.base_folder(spec.cache_dir, user)
    folder = open_folder(base, spec.name, spec.data_dir.absolute() if spec.data_dir else None)
    make_folder(folder.path.parent)
    with locked(folder.lock):
        try:
            running = NodeState.read(folder.state)
            if running and running.lives:
                return _reuse(running, folder, spec, product, on_progress)
            if running:
                _require_same_cluster(running, spec)
            _require_free(spec.port)
            _require_own_data(folder, product, user)
            command = _install(folder, spec, product, base, user, on_progress)
            return _launch(command, folder, spec, product, user, on_progress)
        finally:
            if not folder.state.exists():
                remove([folder.lock])


def node_folder(name: str, cache_dir: Path) -> NodeFolder:
    """Return the folder of the node of this name, whether it runs or not."""
    check_node_name(name)
    return open_folder(account.base_folder(cache_dir, account.run_as()), name)


def stop(name: str, cache_dir: Path, *, drop_data: bool = False) -> bool:
    """Stop a node, or all nodes of the cluster of that name; return whether any ran."""
    folder = node_folder(name, cache_dir)
    state = NodeState.read(folder.state)
    if state is None:
        return False
    others = state.members[1:] if state.members[:1] == (name,) else ()
    ran = [stop(other, cache_dir, drop_data=drop_data) for other in others]
    ran.append(state.lives)
    _stop(state, folder, drop_data=drop_data)
    return any(ran)


def _reuse(
    state: NodeState, folder: NodeFolder, spec: NodeSpec, product: Distribution, on_progress: ProgressCallback
) -> Node:
    """Return the running node when it answers, if it has the requested values."""
    node = Node(state, folder, _await(folder, state, spec.timeout, on_progress, lambda: state.lives), reused=True)
    requested_and_running = {
        "product": (product.product, state.product),
        "port": (spec.port or node.port, node.port),
        "plugin": (product.plugin.digest if product.plugin else state.plugin, state.plugin),
        "cluster": (_names(spec.cluster.members if spec.cluster else ()), _names(state.members)),
        "data folder": (str(spec.data_dir.absolute()) if spec.data_dir else state.data, state.data),
    }
    for what, (requested, running) in requested_and_running.items():
        if requested != running:
            raise InvalidRequest(
                f"node [{spec.name}] runs already with {what} [{running}], not [{requested}]: "
                f"stop it first or choose another --name"
            )
    if state.owner and not spec.owned:
        raise InvalidRequest(
            f"node [{spec.name}] runs already and ends with process {state.owner.pid}: choose another --name"
        )
    return node


def _require_free(port: int | None) -> None:
    """Raise an error if a port is in use; None and 0 leave the choice to the node."""
    if not port:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            reason = _listener(port) or error.strerror
            raise NodeError(f"port {port} cannot be used ({reason}): choose another --port, or none") from error


def _require_own_data(folder: NodeFolder, product: Distribution, user: str | None) -> None:
    """Refuse a data folder with other files, of another running node, or that the node's user cannot enter."""
    if not account.is_reachable_by(folder.data.parent, user):
        raise InvalidRequest(
            f"data folder [{folder.data}] cannot be entered by user [{user}], which the engine runs as: choose another"
        )
    held = held_by(folder.data)
    if held not in (None, product.product):
        raise InvalidRequest(
            f"data folder [{folder.data}] holds {f'data of {held}' if held else 'something else'}: choose an empty one"
        )
    for note in folder.path.parent.glob("*.json"):
        other = NodeState.read(note)
        if other and note != folder.state and other.data == str(folder.data) and other.lives:
            raise InvalidRequest(
                f"data folder [{folder.data}] is in use by node [{other.name}]: stop that node or choose another folder"
            )


def _listener(port: int) -> str:
    try:
        connections = psutil.net_connections("tcp")
        pids = [
            entry.pid
            for entry in connections
            if entry.status == psutil.CONN_LISTEN and getattr(entry.laddr, "port", None) == port
        ]
        name = psutil.Process(pids[0]).name() if pids and pids[0] else ""
    except psutil.Error:
        return ""
    return f"taken by {name}, process {pids[0]}" if name else ""


def _require_same_cluster(before: NodeState, spec: NodeSpec) -> None:
    """Raise an error for data of another cluster: its nodes would wait for absent ones."""
    members = spec.cluster.members if spec.cluster else ()
    if before.members != members:
        raise InvalidRequest(
            f"node [{before.name}] was made with nodes [{_names(before.members)}], not [{_names(members)}]: start all "
            "of them with --nodes, choose another --name, or remove it with `es-ttc engine down --drop-data`"
        )


def _names(members: Sequence[str]) -> str:
    return ", ".join(members) or "none"


def _install(
    folder: NodeFolder,
    spec: NodeSpec,
    product: Distribution,
    base: Path,
    user: str | None,
    on_progress: ProgressCallback,
) -> Command:
    """Install all files and return the command that starts the node."""
    java = product.java()
    java = dataclasses.replace(java, home=account.reachable_copy(java.home, base, user))
    home = product.install(base, on_progress)
    if product.plugin is not None:
        home = product.plugin.install(home, folder.home)
    prepare_configuration(folder, spec, product, home, user)
    return product.command(home, folder, java, spec)


def _launch(
    command: Command,
    folder: NodeFolder,
    spec: NodeSpec,
    product: Distribution,
    user: str | None,
    on_progress: ProgressCallback,
) -> Node:
    """Start the supervisor, which starts the node, and wait until the node answers."""
    launch = Launch(
        arguments=list(command.arguments),
        environment=dict(command.environment),
        folder=str(command.folder),
        user=user,
        log=str(folder.log),
        state=str(folder.state),
        owner=ProcessId.of(os.getpid()) if spec.owned else None,
        remove=[] if spec.keep_data else [str(path) for path in folder.all],
    )
    state = NodeState(
        name=spec.name,
        product=product.product,
        version=product.version,
        data=str(folder.data),
        heap=spec.heap,
        keep_data=spec.keep_data,
        owner=launch.owner,
        plugin=product.plugin.digest if product.plugin else None,
        members=spec.cluster.members if spec.cluster else (),
        transport=spec.cluster.transport if spec.cluster else None,
    )
    state.write(folder.state)
    with open_private(folder.supervisor_log, "wb") as errors:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "es_ttc.engine.node.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=folder.path,
            start_new_session=True,
        )
    _forget_ended()
    _supervisors[supervisor.pid] = supervisor
    if supervisor.stdin:
        with supervisor.stdin as stdin:
            stdin.write(launch.to_json().encode())
    try:
        port = _await(folder, state, spec.timeout, on_progress, lambda: supervisor.poll() is None)
    except BaseException:
        supervisor.terminate()
        supervisor.wait()
        if not state.keep_data:
            remove(folder.all)
        raise
    started = NodeState.read(folder.state)
    if started is None:
        raise NodeError(f"node [{state.name}] was removed while it started: start it again")
    return Node(started, folder, port)


# Supervisors started by this process, so that they are reaped when they end.
_supervisors: dict[int, subprocess.Popen[bytes]] = {}


def _forget_ended() -> None:
    """Reap the supervisors of nodes that ended by themselves or were killed, and are started again now."""
    for pid, supervisor in list(_supervisors.items()):
        if supervisor.poll() is not None:
            _supervisors.pop(pid, None)  # a cluster's nodes start in several threads


def _await(
    folder: NodeFolder, state: NodeState, timeout: float, on_progress: ProgressCallback, lives: Callable[[], bool]
) -> int:
    """Wait until the node answers and return its port."""
    began = time.monotonic()
    detail = f"{state.product} {state.version}, node [{state.name}]"
    while (elapsed := time.monotonic() - began) < timeout:
        on_progress(NodeProgress("start", elapsed, timeout, detail))
        port = read_port(folder)
        if port and is_healthy(port, "2s"):
            return port
        if not lives():
            raise NodeError(
                f"node [{state.name}] did not start: {_reason(folder)}", log_tail=log_tail(folder.log, LOG_LINES)
            )
        time.sleep(POLL_SECONDS)
    raise NodeError(
        f"node [{state.name}] did not answer within {timeout:.0f} seconds (log: {folder.log})",
        log_tail=log_tail(folder.log, LOG_LINES),
    )


def is_healthy(port: int, timeout: str, **wanted: str | int) -> bool:
    """Return whether a node has a master, its indices are open, and its cluster's health is as wanted."""
    query = urlencode({"wait_for_status": "yellow", "timeout": timeout, **wanted})
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", f"/_cluster/health?{query}")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _reason(folder: NodeFolder) -> str:
    """Return the last line of the log with an error, else its last line."""
    lines = log_tail(folder.log, 200).splitlines() or log_tail(folder.supervisor_log, 200).splitlines()
    telling = [line for line in lines if re.search(r"Exception|Error:|ERROR|fatal", line) and "\tat " not in line]
    return (telling or lines or ["it wrote no log"])[-1].strip()


def _stop(state: NodeState, folder: NodeFolder, *, drop_data: bool) -> None:
    for identity in (state.supervisor, state.node):
        process = identity.process() if identity else None
        if process:
            _end(process, state.name)
    own = _supervisors.pop(state.supervisor.pid, None) if state.supervisor else None
    if own:
        own.wait()
    if drop_data or not state.keep_data:
        remove(folder.all)


def _end(process: psutil.Process, name: str) -> None:
    """Ask a process to end, and kill it after a timeout."""
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
            try:
                process.wait(GRACE_SECONDS + 10)
            except psutil.TimeoutExpired:
                continue
            return
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied as error:
        raise NodeError(f"node [{name}] belongs to another user: stop it as that user") from error
    raise NodeError(f"node [{name}] does not end: process {process.pid} survived being killed")
