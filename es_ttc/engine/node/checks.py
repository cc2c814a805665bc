"""Checks before a node is started: of its port and of its data folder."""

import socket

import psutil

from es_ttc.engine.node import account
from es_ttc.engine.node.configuration import held_by
from es_ttc.engine.node.distribution import Distribution, NodeFolder
from es_ttc.engine.node.state import HOST, State
from es_ttc.errors import InvalidRequest, NodeError


def port_is_free(port: int | None) -> None:
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


def data_is_ours(folder: NodeFolder, product: Distribution, user: str | None) -> None:
    """Refuse a data folder with other files, of another running node, or that the node's user cannot enter."""
    if not account.reachable(folder.data.parent, user):
        raise InvalidRequest(
            f"data folder [{folder.data}] cannot be entered by user [{user}], which the engine runs as: choose another"
        )
    held = held_by(folder.data)
    if held not in (None, product.product):
        raise InvalidRequest(
            f"data folder [{folder.data}] holds {f'data of {held}' if held else 'something else'}: choose an empty one"
        )
    for note in folder.path.parent.glob("*.json"):
        other = State.read(note)
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
