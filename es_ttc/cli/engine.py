"""`es-ttc engine`: start and stop an embedded OpenSearch node from the command line."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import click
from pydantic import Field

from es_ttc.cli.common import AsJson, Step, print_json, print_result, stderr, step
from es_ttc.cli.model_options import FOLDER_PATH, CommandGroup, command
from es_ttc.engine.node import cluster, process
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.parts import DEFAULT_VERSION, VERSIONS
from es_ttc.engine.node.plugin import Plugin
from es_ttc.engine.node.spec import NodeProgress, NodeSpec, ProgressCallback
from es_ttc.engine.node.state import clusters, log_tail, reports
from es_ttc.errors import InvalidRequest, NodeError
from es_ttc.settings import GatewaySettings, Settings

BUILT = "built"
FOLLOW_SECONDS = 0.5
_LINES = 50

name_flag = click.option(
    "--name", default="default", show_default=True, help="Name of the node; several nodes can run at once."
)


@click.group(cls=CommandGroup)
def engine() -> None:
    """Run an OpenSearch node on this machine.

    The node has k-NN, and needs no container and no installation.

    The first start downloads about 85 MB once. Java 21 or newer is used if the machine has it.
    """


@command(
    "es-ttc engine up",
    "es-ttc engine up --name trial --port 0 --heap 2g",
    "es-ttc engine up --nodes 3",
    "es-ttc engine up --version 2.19.1 --name older",
    group=engine,
)
def up(
    *,
    name: Annotated[str, name_flag],
    port: Annotated[
        int | None, Field(ge=0, le=65535), "HTTP port; 0 for any free one. Default: 9200, or the next free port."
    ] = None,
    data_dir: Annotated[
        Path | None, FOLDER_PATH, "Folder of the data. Default: the node's own folder below the cache."
    ] = None,
    heap: Annotated[str, "--heap SIZE", "Java heap per node, such as 512m or 2g."] = "1g",
    nodes: Annotated[
        int,
        Field(ge=1, le=9),
        "Number of nodes; several form a cluster, on ports after --port. The first has the cluster's name, "
        "the others NAME-2, NAME-3...",
    ] = 1,
    version: Annotated[
        str | None,
        click.option(
            "--version",
            type=click.Choice(VERSIONS),
            help=f"OpenSearch version; {VERSIONS[-1]} needs a Java of version 17 to 23. Default: {DEFAULT_VERSION}.",
        ),
    ],
    plugin: Annotated[
        str | None,
        click.option(
            "--plugin",
            is_flag=False,
            flag_value=BUILT,
            metavar="[ZIP]",
            help="Install the es-ttc plugin in the node: the one built in this checkout, or ZIP. It uses the gateway "
            "at ES_TTC_HOST and ES_TTC_PORT with the token ES_TTC_SIDECAR_TOKEN.",
        ),
    ],
    as_json: AsJson,
) -> None:
    """Start a node and keep it running. A running node is used as it is.

    The node keeps its data until `es-ttc engine down --drop-data`.
    """
    if plugin is not None and version not in (None, DEFAULT_VERSION):
        raise click.UsageError(f"the plugin is for OpenSearch {DEFAULT_VERSION}: give --plugin without --version")
    built = None if plugin is None else _plugin(plugin)
    distribution = OpenSearchDistribution(built, version or DEFAULT_VERSION)
    spec = NodeSpec(cache_dir=Settings().cache_dir, name=name, port=port, data_dir=data_dir, heap=heap)
    try:
        with step(stderr, "looking for a running node") as shown:
            running: Sequence[process.Node]
            if nodes > 1:
                running = cluster.start_cluster(spec, nodes, progress_of(shown), distribution).nodes
            else:
                running = [process.start_node(spec, progress_of(shown), distribution)]
            reused, state = all(node.reused for node in running), running[0].state
            if version not in (None, state.version):
                raise InvalidRequest(
                    f"node [{name}] runs already, with version {state.version}: stop it with `es-ttc engine down "
                    f"--name {name}`, or give another --name"
                )
            what = f"{state.product} {state.version}" + (f", {nodes} nodes" if nodes > 1 else "")
            shown.done = f"{what} " + ("runs already" if reused else "started")
    except NodeError as error:
        if error.log_tail:
            click.echo(error.log_tail, err=True)
        raise
    urls = [node.url for node in running]
    described = [{**asdict(node.state), "url": node.url, "reused": node.reused} for node in running]
    more = described[0] if nodes == 1 else {"urls": urls, "nodes": described}
    lines = [
        f"{node.url} (node {node.state.name}; log: es-ttc engine logs --name {node.state.name})" for node in running
    ]
    if Settings().engine not in urls:
        lines.append(f"export ES_TTC_ENGINE={urls[0]}")
    data = {**more, "name": name, "url": urls[0], "reused": reused}
    print_result(data, "\n".join(lines), as_json=as_json)


@command("es-ttc engine down", "es-ttc engine down --name trial --drop-data", group=engine)
def down(
    *,
    name: Annotated[str, name_flag],
    drop_data: Annotated[bool, "Also remove the node's data."] = False,
    as_json: AsJson,
) -> None:
    """Stop a node, or a whole cluster by its name. The data are kept without --drop-data."""
    cache = Settings().cache_dir
    dropped = drop_data and process.node_folder(name, cache).data.exists()
    ran = process.stop(name, cache, drop_data=drop_data)
    text = f"node {name} {'is stopped' if ran else 'did not run'}{', its data are gone' * dropped}"
    print_result({"name": name, "stopped": ran, "data_dropped": dropped}, text, as_json=as_json)


@command("es-ttc engine status --json", group=engine)
def status(*, as_json: AsJson) -> None:
    """List the nodes of this machine with their addresses and resources."""
    nodes = reports(Settings().cache_dir)
    if as_json:
        print_json({"nodes": nodes, "clusters": clusters(nodes)})
        return
    if not nodes:
        click.echo("no node yet: start one with `es-ttc engine up`")
        return
    for node in nodes:
        memory = f", process {node.pid}, {node.memory_bytes / 2**20:,.0f} MiB" if node.memory_bytes else ""
        lines = (
            f"{node.name}: {node.status}{f' at {node.url}' if node.url else ''}",
            f"  {node.product} {node.version}, heap {node.heap}{memory}",
            f"  data {node.data}",
            *([f"  of cluster {node.cluster}"] if node.cluster else []),
        )
        click.echo("\n".join(lines))


@command("es-ttc engine logs --follow", group=engine)
def logs(
    *,
    name: Annotated[str, name_flag],
    follow: Annotated[bool, "--follow/-f", "Follow the log until Ctrl-C."] = False,
    as_json: AsJson,
) -> None:
    """Show the last 50 lines of the log of a node."""
    if follow and as_json:
        raise click.UsageError("--follow has no end, --json prints one object: give one of the two")
    log = process.node_folder(name, Settings().cache_dir).log
    if not log.exists():
        raise InvalidRequest(f"there is no node [{name}]: see `es-ttc engine status`")
    if as_json:
        print_json({"name": name, "log": str(log), "lines": log_tail(log, _LINES).splitlines()})
        return
    click.echo(log_tail(log, _LINES))
    if follow:
        _follow(log)


def progress_of(shown: Step) -> ProgressCallback:
    """Return a callback that displays the download and start of a node as one step: a bar, then a spinner."""

    def show(progress: NodeProgress) -> None:
        if progress.stage == "fetch":
            megabytes = f"{progress.done / 1e6:,.0f} of {progress.total / 1e6:,.0f} MB"
            shown.advance_to(progress.done, progress.total, f"fetching {progress.detail}, {megabytes}")
        else:
            shown.advance_to(0, None, f"starting {progress.detail}, {progress.done:.0f} s")

    return show


def _plugin(archive: str) -> Plugin:
    settings = GatewaySettings()
    address = f"http://{settings.host}:{settings.port}"
    return Plugin.of(None if archive == BUILT else Path(archive), "opensearch", address, settings.sidecar_token)


def _follow(log: Path) -> None:
    with log.open(errors="replace") as file:
        file.seek(0, 2)
        while True:
            text = file.read()
            if text:
                click.echo(text, nl=False)
            else:
                time.sleep(FOLLOW_SECONDS)
