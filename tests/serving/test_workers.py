"""`es-ttc serve --workers 2`: one address, one cache, one set of metrics, and no request lost when processes change."""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.serving.workers import share_of
from es_ttc.settings import GatewaySettings
from tests.cli.test_serve import serving
from tests.serving.client import call
from tests.serving.conftest import make_index

PATIENCE_SECONDS = 120


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def ready(url: str) -> bool:
    with contextlib.suppress(OSError):
        return call(url, "GET", "/_ttc/ready").status == 200
    return False


def workers_of(process: subprocess.Popen[str]) -> set[int]:
    return {child.pid for child in psutil.Process(process.pid).children() if _is_worker(child)}


def _is_worker(child: psutil.Process) -> bool:
    try:
        return any("spawn_main" in part for part in child.cmdline())
    except psutil.Error:  # it has ended
        return False


def metric(url: str, name: str) -> float:
    text = call(url, "GET", "/_ttc/metrics").body.decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


class Searches:
    """Clients that search without a pause, each with a new connection."""

    def __init__(self, url: str, index: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self._url, self._index = url, index
        self._stop = threading.Event()

    def send(self) -> bool:
        """Search once; return whether the window was rescored."""
        body = {"query": {"match_all": {}}, "rescore": {"window_size": 60, "ttc": {"query_text": "a cat at night"}}}
        return bool(call(self._url, "POST", f"/{self._index}/_search", body).json()["ttc"]["applied"])

    @contextlib.contextmanager
    def running(self, clients: int = 2) -> Iterator[None]:
        def search() -> None:
            while not self._stop.is_set():
                try:
                    self.outcomes["applied" if self.send() else "fallback"] += 1
                except (OSError, HTTPException):
                    self.outcomes["lost"] += 1

        threads = [threading.Thread(target=search) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.slow
def test_two_workers_are_one_gateway(opensearch_url: str, index_name: str, encoder: Encoder, tmp_path: Path) -> None:
    make_index(opensearch_url, index_name, encoder)
    with serving(opensearch_url, "--workers", "2", logs=subprocess.DEVNULL, folder=tmp_path) as (process, said):
        url = said["url"]
        until(lambda: ready(url))
        searches = Searches(url, index_name)
        assert all(searches.send() for _ in range(20))
        until(lambda: metric(url, "es_ttc_requests_total") == 20)  # of both; counted when the response has been sent
        read = 3 * metric(url, "es_ttc_feature_cache_entries")  # each document's tokens, norms and pooled vector
        assert read == metric(url, "es_ttc_feature_cache_misses_total"), "each feature was read once, by one of both"

        first = workers_of(process)
        assert len(first) == 2
        with searches.running():
            os.kill(min(first), signal.SIGKILL)
            until(lambda: len(workers_of(process) - first) == 1)
            until(lambda: sum(searches.outcomes.values()) > 50)
        assert searches.outcomes["lost"] <= 2, "those that the killed process was answering"
        assert searches.outcomes["fallback"] == 0
        until(lambda: ready(url))

        second, searches = workers_of(process), Searches(url, index_name)
        assert call(url, "GET", "/_ttc/").json()["default_timeout_ms"] == 1000
        (tmp_path / "es-ttc.toml").write_text("default_timeout_ms = 1500\nport = 1\n")
        with searches.running():
            process.send_signal(signal.SIGHUP)
            until(lambda: len(workers_of(process)) == 2 and not workers_of(process) & second)
        assert set(searches.outcomes) == {"applied"}, "replacing loses nothing, and nobody waits for an encoder"
        assert metric(url, "es_ttc_feature_cache_misses_total") == read, "new processes find what was read before"

        assert call(url, "GET", "/_ttc/").json()["default_timeout_ms"] == 1500, "settings are read again"

        (tmp_path / "es-ttc.toml").write_text("default_timeout_ms = -1\n")
        process.send_signal(signal.SIGHUP)
        third = workers_of(process)
        time.sleep(1)
        assert workers_of(process) == third, "nothing is replaced for settings that are wrong"
        process.kill()
        until(lambda: not any(psutil.pid_exists(pid) for pid in third))


def test_limits_are_divided_among_workers() -> None:
    settings = GatewaySettings(workers=4, max_concurrent_requests=256, max_bodies_mb=512, scoring_threads=2)
    own = share_of(settings)
    assert (own.max_concurrent_requests, own.max_connections, own.scoring_threads) == (64, 1024, 1)
    assert own.max_bodies_mb == 128
    assert share_of(settings.model_copy(update={"max_bodies_mb": 200})).max_bodies_mb == settings.max_body_mb
