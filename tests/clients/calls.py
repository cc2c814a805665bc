"""Runs programs with clients of other languages against an engine and through the gateway, and compares each answer.

The clients are installed elsewhere, from their package registries::

    npm install --prefix DIR @elastic/elasticsearch @opensearch-project/opensearch
    cd DIR && go mod init calls && go get github.com/elastic/go-elasticsearch/v9 github.com/opensearch-project/opensearch-go/v4
    mvn dependency:copy-dependencies -DoutputDirectory=DIR/lib  # of elasticsearch-java, opensearch-java, httpclient5 5.6
    python -m tests.clients.calls DIR

writes docs/reference/clients.md.
"""  # noqa: E501 - commands

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.common import table
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.gateway import gateway_to
from tests.support.shared_nodes import started

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "clients.md"
PROGRAMS = Path(__file__).parent / "languages"
INDEX = "calls"
SECTION = "section"
HEAD = """\
# Clients

<!-- Written by tests/clients/calls.py. -->

Programs with clients of other languages run the calls of an application (information, a new index, a bulk, documents
by id, searches, an error, a search with the section) against an engine and through the gateway. Answers are compared
without the times in them. The clients send and accept compressed bodies where they can. Nothing is configured but the
address.

"""
TAIL = """
The typed answers of opensearch-go have no field for `ttc`, so its program reads the body of that call; those with
elasticsearch-java and opensearch-java send it by the low-level and the generic client.

The vendors' own tests of elasticsearch-py, opensearch-py and opensearch-go run [on an engine and through the
gateway](../../tests/clients/suites.py), test by test. Of opensearch-go 4.8.1 on OpenSearch 3.5.0 all 778 end
alike (744 pass; 33 fail on the engine alone, which has no snapshot repository and no JDK of its own; 2026-11-28). The
packages of the other clients contain no such tests; the engines' YAML tests of
[searches](../results/engine-versions.md) run.
Clients for .NET, PHP and Ruby were not run.
"""


@dataclass(frozen=True)
class Client:
    """A client, and the program that calls it.

    Attributes:
        product: Makes the engine that it is for.
        program: The command before address and index, in the folder of the clients.
        version: The command that prints its version.
        configured: Its line of configuration.
    """

    name: str
    product: Callable[[], Distribution]
    program: Sequence[str]
    version: Sequence[str]
    configured: str


def _javascript(name: str, product: Callable[[], Distribution]) -> Client:
    return Client(
        name,
        product,
        ("node", str(PROGRAMS / "calls.js"), name),
        ("node", "-p", f"require('./node_modules/{name}/package.json').version"),
        'new Client({ node: "http://127.0.0.1:9280" })',
    )


def _go(module: str, name: str, product: Callable[[], Distribution]) -> Client:
    return Client(
        module.split("/")[2],
        product,
        ("go", "run", f"./{name}"),
        ("go", "list", "-m", "-f", "{{.Version}}", module),
        f'{name}.Config{{Addresses: []string{{"http://127.0.0.1:9280"}}}}',
    )


def _java(name: str, product: Callable[[], Distribution], configured: str) -> Client:
    client = f"{product().product}-java"
    return Client(
        client,
        product,
        ("java", "-cp", "lib/*", str(PROGRAMS / f"{name}.java")),
        ("sh", "-c", f"ls lib | sed -n 's/^{client}-\\(.*\\)[.]jar/\\1/p'"),
        configured,
    )


CLIENTS = (
    _javascript("@elastic/elasticsearch", ElasticsearchDistribution),
    _javascript("@opensearch-project/opensearch", OpenSearchDistribution),
    _go("github.com/elastic/go-elasticsearch/v9", "elasticsearch", ElasticsearchDistribution),
    _go("github.com/opensearch-project/opensearch-go/v4", "opensearch", OpenSearchDistribution),
    _java("Elasticsearch", ElasticsearchDistribution, 'ElasticsearchClient.of(b -> b.host("http://127.0.0.1:9280"))'),
    _java(
        "OpenSearch",
        OpenSearchDistribution,
        'ApacheHttpClient5TransportBuilder.builder(HttpHost.create("http://127.0.0.1:9280"))',
    ),
)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """Run all programs in the folder of the clients; fail where an answer differs through the gateway."""
    rows, different = [], []
    for client in CLIENTS:
        if client.program[0] == "go":
            name = Path(client.program[-1]).name
            (folder / name).mkdir(exist_ok=True)
            shutil.copy(PROGRAMS / f"{name}.go", folder / name / "main.go")
        product = client.product()
        with started(product) as node, gateway_to(node.url) as gateway:
            direct, through = (calls(client, folder, url) for url in (node.url, gateway))
        section = json.dumps(through.pop(SECTION))
        direct.pop(SECTION)
        unlike = [call for call in direct.keys() | through.keys() if direct.get(call) != through.get(call)]
        different += [f"{client.name} {call}: {direct.get(call)}, {through.get(call)}" for call in unlike]
        different += [] if "applied" in section else [f"{client.name}: {section}"]
        version = subprocess.run(client.version, cwd=folder, text=True, check=True, capture_output=True).stdout.strip()
        engine = f"{product.product} {product.version}"
        same = f"{len(direct) - len(unlike)} of {len(direct)}"
        rows.append((client.name, version.removeprefix("v"), engine, same, f"`{client.configured}`"))
    click.echo("\n".join(different))
    if not different:
        PAGE.write_text(HEAD + table(("client", "version", "engine", "same answers", "configuration"), rows) + TAIL)
    sys.exit(1 if different else 0)


def calls(client: Client, folder: Path, url: str) -> dict[str, Any]:
    """Return the answer to each call."""
    command = [*client.program, url, INDEX]
    lines = subprocess.run(command, cwd=folder, text=True, check=True, capture_output=True).stdout.splitlines()
    return {one["call"]: _timeless(one["answer"]) for one in map(json.loads, lines)}


def _timeless(part: Any) -> Any:
    if isinstance(part, list):
        return [_timeless(one) for one in part]
    if isinstance(part, dict):
        return {key: _timeless(value) for key, value in part.items() if key.lower() not in ("took", "ingest_took")}
    return part


if __name__ == "__main__":
    main()
