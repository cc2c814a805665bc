"""The plugins as they are built from this checkout, and a sidecar before a node that can be made to fail."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from es_ttc.common.files import locked, make_folder
from es_ttc.engine.node import account, java
from es_ttc.engine.node.spec import ignore
from es_ttc.errors import ConfigurationError
from es_ttc.settings import Settings
from tests.serving.client import Reply, call
from tests.serving.relay import Passed, Relay, relay
from tests.support.elasticsearch import ElasticsearchDistribution

SOURCES = Path(__file__).parents[2] / "plugin"
NOWHERE = "http://127.0.0.1:9"
_BUILD_SECONDS = 600

Fault = Callable[[Callable[[], Reply]], Reply]
"""Given the way to a right answer, gives a wrong one, or breaks the connection by raising."""


def built(product: str) -> Path:
    """Return the zip for a product; both are built, and Java tests run, unless that was done since the last change.

    The test is skipped where no Maven or no JDK is to be had, which fails on CI.
    """
    target = SOURCES / product / "target"
    changed = max(path.stat().st_mtime for path in SOURCES.rglob("*") if "target" not in path.parts and path.is_file())
    with locked(make_folder(SOURCES.parent / "build") / "plugin.lock"):  # Maven empties its own folders
        found = sorted(target.glob(f"es-ttc-{product}-*.zip"))
        if not found or found[-1].stat().st_mtime < changed:
            _build()
            found = sorted(target.glob(f"es-ttc-{product}-*.zip"))
    return found[-1]


@contextmanager
def sidecar_address() -> Iterator["Sidecar"]:
    """Give a node's sidecar an address before there is a gateway."""
    with relay(NOWHERE) as passing:
        yield Sidecar(passing)


def _build() -> None:
    """Build both plugins, that for Elasticsearch with the jars of an installation."""
    try:
        home = java.find_java(jdk=True).home
    except ConfigurationError as error:
        _cannot(str(error))
    if shutil.which("mvn") is None:
        _cannot("there is no mvn on the PATH")
    cache = Settings().cache_dir
    elasticsearch = ElasticsearchDistribution().install(account.base_folder(cache, account.run_as()), ignore)
    done = subprocess.run(
        [sys.executable, str(SOURCES.parent / "release" / "plugins.py"), "--elasticsearch", str(elasticsearch)],
        env={**os.environ, "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _cannot(why: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"the plugins must be tested on CI: {why}")
    pytest.skip(f"no plugins: {why}")


class Sidecar:
    """What a node asks: a relay before a gateway, which stands where the node's settings say for as long as needed.

    Attributes:
        gateway: The gateway's address, once there is one.
        relay: Remembers what passes.
    """

    def __init__(self, passing: Relay) -> None:
        self.gateway = NOWHERE
        self.relay = passing
        passing.before = self._answer
        self._fault: Fault | None = None

    @property
    def url(self) -> str:
        """The address that the node is given."""
        return self.relay.url

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """Let it answer in a wrong way for a while."""
        self._fault = fault
        try:
            yield
        finally:
            self._fault = None

    def _answer(self, request: Passed) -> Reply:
        fault = self._fault
        if fault is None:
            return self._passed(request)
        return fault(lambda: self._passed(request))

    def _passed(self, request: Passed) -> Reply:
        kept = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        return call(self.gateway, request.method, request.target, request.body, kept)
