"""Write a node's folder: settings, logging, and the folders that the node's user owns."""

from pathlib import Path
from typing import Any

import orjson

from es_ttc.common.files import make_folder, remove
from es_ttc.engine.node import account
from es_ttc.engine.node.distribution import Distribution, NodeFolder
from es_ttc.engine.node.spec import ClusterSpec, NodeSpec
from es_ttc.engine.node.state import HOST

DEFAULT_PORT = 9200
PORT_RANGE = f"{DEFAULT_PORT}-{DEFAULT_PORT + 99}"
DATA_MARK = ".es-ttc-node"
LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %marker%m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


def prepare_configuration(
    folder: NodeFolder, spec: NodeSpec, product: Distribution, home: Path, user: str | None
) -> None:
    """Write all files that the node reads when it starts."""
    if held_by(folder.data) is None:
        make_folder(folder.data).chmod(0o700)
        (folder.data / DATA_MARK).write_text(product.product + "\n")
    fresh = (folder.config, folder.logs, folder.temporary)
    remove(fresh)
    for path in fresh:
        make_folder(path)
    (folder.config / f"{product.product}.yml").write_text(settings(folder, spec, product))
    (folder.config / "log4j2.properties").write_text(LOGGING)
    product.configure(home, folder)
    for path in (*fresh, folder.data):
        account.give(path, user)


def settings(folder: NodeFolder, spec: NodeSpec, product: Distribution) -> str:
    """Return the node's settings as YAML: one node, or one of a cluster, on the loopback interface."""
    values: dict[str, Any] = {
        "cluster.name": f"es-ttc-{spec.name}",
        "node.name": spec.name,
        # The node chooses a port itself and writes it to a file: so no other process can take it meanwhile.
        "node.portsfile": "true",
        "network.host": HOST,
        "http.port": PORT_RANGE if spec.port is None else str(spec.port),
        "transport.port": "0",
        "discovery.type": "single-node",
        # A laptop's disk is often fuller than a server's may be.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        "path.data": str(folder.data),
        "path.logs": str(folder.logs),
        **_of_cluster(spec.cluster),
        **product.settings(),
    }
    if spec.cluster is not None:
        del values["discovery.type"]
    return "".join(f"{key}: {orjson.dumps(value).decode()}\n" for key, value in values.items())


def _of_cluster(cluster: ClusterSpec | None) -> dict[str, Any]:
    """Return the settings by which a node finds the others of its cluster."""
    if cluster is None:
        return {}
    return {
        "cluster.name": f"es-ttc-{cluster.name}",
        "transport.port": str(cluster.transport),
        "discovery.seed_hosts": [*cluster.seeds],
        "cluster.initial_master_nodes": [*cluster.members],
    }


def held_by(data: Path) -> str | None:
    """Return the product whose data a folder contains; "" for other files, None for nothing."""
    if not data.exists() or not any(data.iterdir()):
        return None
    mark = data / DATA_MARK
    return mark.read_text().strip() if mark.is_file() else ""
