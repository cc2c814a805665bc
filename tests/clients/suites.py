"""Runs the clients' own server tests against an engine and through the gateway, and compares test by test.

The suites are the clients' public ones and are read from checkouts that stand elsewhere; they empty the cluster that
they run on, so they get nodes of their own::

    python -m tests.clients.suites --python VENV/bin/python --elasticsearch-py DIR --opensearch-py DIR
    go mod download github.com/opensearch-project/opensearch-go/v4  # a copy of its folder in `go env GOMODCACHE`:
    python -m tests.clients.suites --opensearch-go DIR
"""

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.common import table
from es_ttc.engine.node import process
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.settings import Settings
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.gateway import gateway_to

MAX_SECONDS = 1800


@dataclass(frozen=True)
class Suite:
    """The server tests of one client.

    Attributes:
        client: Its name.
        node: What they run against.
        address: The variable that tells them where that is.
        paths: Where they stand in the client's repository; what needs other services, or licences, is left out.
        is_go: Whether they are Go packages, and not Python files.
    """

    client: str
    node: Callable[[], Distribution]
    address: str
    paths: tuple[str, ...]
    is_go: bool = False


SUITES = (
    Suite(
        "elasticsearch-py",
        ElasticsearchDistribution,
        "ELASTICSEARCH_URL",
        (
            "test_elasticsearch/test_server/test_clients.py",
            "test_elasticsearch/test_server/test_helpers.py",
            "test_elasticsearch/test_server/test_responses.py",
            "test_elasticsearch/test_async/test_server/test_clients.py",
            "test_elasticsearch/test_async/test_server/test_helpers.py",
            "test_elasticsearch/test_dsl/test_integration",
        ),
    ),
    Suite(
        "opensearch-py",
        OpenSearchDistribution,
        "OPENSEARCH_URL",
        (
            "test_opensearchpy/test_server/test_clients.py",
            "test_opensearchpy/test_server/test_helpers",
            "test_opensearchpy/test_async/test_server/test_clients.py",
            "test_opensearchpy/test_async/test_server/test_helpers",
        ),
    ),
    Suite(
        "opensearch-go",
        OpenSearchDistribution,
        "OPENSEARCH_URL",
        (".", "./opensearchapi", "./opensearchutil"),
        is_go=True,
    ),
)
_GO = ("go", "test", "-json", "-count=1", "-p=1", "-tags=integration,core")
_GO_OUTCOMES = {"pass": "passed", "fail": "failed", "skip": "skipped"}

Outcomes = dict[str, str]


@click.command()
@click.option("--python", default=sys.executable, show_default=True, help="Interpreter with the clients and pytest.")
@click.option("--elasticsearch-py", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--opensearch-py", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--opensearch-go", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(python: str, **options: Path | None) -> None:
    """Run the suites whose checkouts are given; fail where a test ends otherwise through the gateway."""
    checkouts = {name.replace("_", "-"): checkout for name, checkout in options.items()}
    rows, different = [], 0
    for suite in SUITES:
        checkout = checkouts[suite.client]
        if checkout is None:
            continue
        spec = NodeSpec(
            cache_dir=Settings().cache_dir, name=f"suites-{os.getpid()}", port=0, owned=True, keep_data=False
        )
        with process.start_node(spec, distribution=suite.node()) as node:
            direct = run(suite, checkout, python, node.url)
            with gateway_to(node.url) as gateway:
                through = run(suite, checkout, python, gateway)
        for where, outcomes in (("engine", direct), ("gateway", through)):
            counts = Counter(outcomes.values())
            rows.append((suite.client, where, *(counts[kind] for kind in ("passed", "failed", "error", "skipped"))))
        for test in sorted(direct.keys() | through.keys()):
            if direct.get(test) != through.get(test):
                different += 1
                click.echo(
                    f"{suite.client} {test}: {direct.get(test)} directly, {through.get(test)} through the gateway"
                )
    click.echo(table(("suite", "against", "passed", "failed", "error", "skipped"), rows))
    sys.exit(1 if different else 0)


def run(suite: Suite, checkout: Path, python: str, url: str) -> Outcomes:
    """Return how each test ends."""
    if suite.is_go:
        variables = {**os.environ, suite.address: url, "SECURE_INTEGRATION": "false", "OPENSEARCH_NODE_COUNT": "1"}
        output = subprocess.run(
            [*_GO, *suite.paths], cwd=checkout, env=variables, capture_output=True, timeout=MAX_SECONDS, check=False
        ).stdout
        events = [event for line in output.splitlines() if (event := json.loads(line)).get("Test")]
        return {
            f"{event['Package']}.{event['Test']}": _GO_OUTCOMES[event["Action"]]
            for event in events
            if event["Action"] in _GO_OUTCOMES
        }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run(
            [*command, *suite.paths],
            cwd=checkout,
            env={**os.environ, suite.address: url, "PYTHONPATH": str(checkout)},
            stdout=subprocess.DEVNULL,
            timeout=MAX_SECONDS,
            check=False,
        )
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {f"{case.get('classname')}.{case.get('name')}": _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> str:
    kinds = {"failure": "failed", "error": "error", "skipped": "skipped"}
    return next((kinds[child.tag] for child in case if child.tag in kinds), "passed")


if __name__ == "__main__":
    main()
