"""Run the tests that need an engine on older versions, one node after the other: `make test-engines`.

The table goes to `docs/results/engine-versions.md`, whose further sections stay. Arguments are those of pytest, after
the suites' own. The variable ES_TTC_TEST_VERSIONS restricts a run to some versions, separated by spaces; it then writes
no table and opens no older indices.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import click

from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.shared_nodes import started

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "engine-versions.md"
SUITES: Mapping[str, tuple[str, ...]] = {
    "engine": ("tests/engine/test_engine.py",),
    "ingest": ("tests/ingest",),
    "attach": ("tests/attach",),
    "gateway": ("tests/serving",),
    "jobs": ("tests/jobs",),
}
OWN_NODES = (
    "tests/attach/test_killed.py",
    "tests/serving/test_engine_faults.py",
    "tests/serving/test_frameworks.py",
    "tests/serving/security",
    "tests/serving/test_serverless.py",
    "tests/ingest/test_engine_killed.py",
    "tests/ingest/test_recovery.py",
)
"""Files whose tests start nodes of their own, or are about the default versions."""


@dataclass(frozen=True, slots=True)
class Tested:
    """An older engine.

    Attributes:
        make: Makes it.
        lacks: Markers of tests that need a module which its package lacks.
    """

    make: Callable[[], Distribution]
    lacks: tuple[str, ...] = ()

    def title(self, product: Distribution) -> str:
        """Return its name in the table."""
        lacking = f" (package without {', '.join(self.lacks)})" if self.lacks else ""
        return f"{product.product} {product.version}{lacking}"


NODES: Sequence[Tested] = (
    Tested(lambda: OpenSearchDistribution(version="2.19.1")),
    Tested(lambda: ElasticsearchDistribution(version="8.13.4"), lacks=("processors",)),
    Tested(lambda: ElasticsearchDistribution(version="8.19.13")),
)
UPGRADES = "tests/upgrade_checks.py"
ONLY = os.environ.get("ES_TTC_TEST_VERSIONS", "").split()
HEAD = """\
# Engine versions

`make test` runs every test on OpenSearch 3.5.0 and Elasticsearch 9.4.3. `make test-engines` runs those that need an
engine on the older versions below, one node after the other (passed / failed), and then opens indices of these versions
with the newer ones (2.19.1 by 3.5.0, 8.19.13 by 9.4.3): rankings stay equal to 1e-4, attached indices go on, and an
enrichment job that is half done is finished, each document once.

"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The tests of one suite on one engine.

    Attributes:
        passed: How many passed.
        failed: Names of those that did not.
    """

    passed: int
    failed: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    """Run all suites on all versions, write the page, and return the exit status."""
    rows: dict[str, dict[str, Outcome]] = {}
    begun = time.monotonic()
    for tested in NODES:
        product = tested.make()
        if ONLY and product.version not in ONLY:
            continue
        title = tested.title(product)
        click.echo(f"== {title}")
        with started(product) as node:
            rows[title] = {
                suite: run(product.product, node.url, paths, (*without(tested.lacks), *arguments))
                for suite, paths in SUITES.items()
            }
    failed = [(title, name) for title, suites in rows.items() for one in suites.values() for name in one.failed]
    upgrades = [sys.executable, "-m", "pytest", "-q", *arguments, UPGRADES]
    upgraded = 0 if ONLY else subprocess.run(upgrades, cwd=ROOT, check=False).returncode
    page = table(rows, (time.monotonic() - begun) / 60)
    click.echo(page)
    for title, name in failed:
        click.echo(f"failed on {title}: {name}")
    if not arguments and not ONLY:
        _, heading, rest = PAGE.read_text().partition("\n## ")
        PAGE.write_text(page + heading + rest)
    return 1 if failed else upgraded


def without(markers: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of pytest that leave out tests with some markers."""
    return ("-m", " and ".join(["engine", *(f"not {marker}" for marker in markers)]))


def run(product: str, url: str, paths: Sequence[str], arguments: Sequence[str]) -> Outcome:
    """Run one suite against one node."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        ignored = [f"--ignore={path}" for path in OWN_NODES]
        command = [sys.executable, "-m", "pytest", "-q", "-k", product, f"--junitxml={report}"]
        environment = os.environ | {f"ES_TTC_TEST_{product.upper()}": url}
        subprocess.run([*command, "-n", "2", *ignored, *arguments, *paths], cwd=ROOT, env=environment, check=False)
        return outcome(report)


def outcome(report: Path) -> Outcome:
    """Read pytest's report in JUnit's form."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    kinds = Counter(
        "failed" if {"failure", "error"} & {child.tag for child in case} else case.find("skipped") is None
        for case in cases
    )
    failed = (case for case in cases if case.find("failure") is not None or case.find("error") is not None)
    return Outcome(kinds[True], tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed))


def table(rows: Mapping[str, Mapping[str, Outcome]], minutes: float) -> str:
    """Return the page."""
    lines = [f"| version | {' | '.join(SUITES)} |", "| --- |" + " --- |" * len(SUITES)]
    for title, suites in rows.items():
        cells = (f"{one.passed} / {len(one.failed)}" for one in suites.values())
        lines.append(f"| {title} | {' | '.join(cells)} |")
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return HEAD + "\n".join(lines) + f"\n\n`make test-engines`: {minutes:.0f} minutes on {machine}.\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
