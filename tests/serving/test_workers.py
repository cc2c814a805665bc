"""The workers of `es-ttc serve`: one address, one set of metrics, and no request lost when processes change."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.serving.process import OnlyProcess
from es_ttc.serving.server import running_gateway
from es_ttc.serving.supervisor import WORKER
from es_ttc.serving.worker import worker_settings
from es_ttc.settings import GatewaySettings
from tests.cli.test_serve import serving
from tests.serving.client import call
from tests.serving.conftest import SearchStack, make_index
from tests.support.gateway import gateway_to

PATIENCE_SECONDS = 120
MAX_RESET = 3


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
        return any(part == WORKER for part in child.cmdline())
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
        # Each process reads a document's tokens, norms and pooled vector once; their counts come some seconds later.
        until(
            lambda: metric(url, "es_ttc_feature_cache_misses_total") == 3 * metric(url, "es_ttc_feature_cache_entries")
        )
        until(lambda: metric(url, "es_ttc_feature_cache_capacity_bytes") == 512 * 2**20)  # divided, not multiplied

        first = workers_of(process)
        assert len(first) == 2
        assert_connections_are_divided(url, first)
        with searches.running():
            os.kill(min(first), signal.SIGKILL)
            until(lambda: len(workers_of(process) - first) == 1)
            until(lambda: sum(searches.outcomes.values()) > 50)
        assert searches.outcomes["lost"] <= 2, "those that the killed process was answering"
        assert searches.outcomes["fallback"] == 0
        until(lambda: ready(url))
        assert_reload_loses_no_request(process, url, index_name, tmp_path)
        last = workers_of(process)
        process.kill()
        until(lambda: not any(psutil.pid_exists(pid) for pid in last))


@pytest.mark.slow
def test_one_worker_is_replaced_without_a_lost_request(
    opensearch_url: str, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    make_index(opensearch_url, index_name, encoder)
    with serving(opensearch_url, "--workers", "1", logs=subprocess.DEVNULL, folder=tmp_path) as (process, said):
        url = said["url"]
        until(lambda: ready(url))
        assert_reload_loses_no_request(process, url, index_name, tmp_path)
        [present] = workers_of(process)
        (tmp_path / "es-ttc.toml").write_text('tls_cert = "/nowhere"\ntls_key = "/nowhere"\n')
        process.send_signal(signal.SIGHUP)
        until(lambda: len(workers_of(process)) == 2)
        until(lambda: workers_of(process) == {present})  # no worker could start with these settings
        os.kill(present, signal.SIGKILL)
        until(lambda: ready(url))
        assert call(url, "GET", "/_ttc/").json()["scoring_timeout_ms"] == 1500, "the settings that were right"


def assert_connections_are_divided(url: str, workers: set[int]) -> None:
    """Open connections at once, as a client's pool does."""
    address = urlsplit(url)
    until(lambda: not any(connections_of(worker, address.port) for worker in workers))
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(contextlib.closing(socket.socket())) for _ in range(16)]
        for client in opened:
            client.connect((address.hostname, address.port))
        until(lambda: sum(connections_of(worker, address.port) for worker in workers) == 16)
        assert all(connections_of(worker, address.port) >= 7 for worker in workers)


def connections_of(worker: int, port: int | None) -> int:
    open_ones = psutil.Process(worker).net_connections("tcp")
    return sum(one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED for one in open_ones)


def assert_reload_loses_no_request(process: subprocess.Popen[str], url: str, index: str, folder: Path) -> None:
    """Reload a gateway, by settings that are right and by wrong ones, while clients search."""
    before, searches = workers_of(process), Searches(url, index)
    assert call(url, "GET", "/_ttc/").json()["scoring_timeout_ms"] == 1000
    (folder / "es-ttc.toml").write_text("scoring_timeout_ms = 1500\nport = 1\n")
    with searches.running():
        process.send_signal(signal.SIGHUP)
        until(lambda: len(workers_of(process)) == len(before) and not workers_of(process) & before)
    assert set(searches.outcomes) == {"applied"}, "replacing loses nothing, and nobody waits for an encoder"
    assert call(url, "GET", "/_ttc/").json()["scoring_timeout_ms"] == 1500, "settings are read again"

    (folder / "es-ttc.toml").write_text("scoring_timeout_ms = -1\n")
    replaced = workers_of(process)
    process.send_signal(signal.SIGHUP)
    time.sleep(2)
    assert workers_of(process) == replaced, "nothing is replaced for settings that are wrong"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_is_lost_when_the_gateway_ends(opensearch_url: str, tmp_path: Path, workers: int) -> None:
    outcomes: Counter[str] = Counter()

    def send(url: str) -> None:
        with contextlib.suppress(ConnectionRefusedError):
            while True:
                try:
                    outcomes[str(call(url, "GET", "/_ttc/health").status)] += 1
                except ConnectionRefusedError:
                    raise
                except (OSError, HTTPException) as error:
                    outcomes[type(error).__name__] += 1

    options = ("--workers", str(workers))
    with serving(opensearch_url, *options, logs=subprocess.DEVNULL, folder=tmp_path) as (process, said):
        threads = [threading.Thread(target=send, args=(said["url"],)) for _ in range(16)]
        for thread in threads:
            thread.start()
        until(lambda: outcomes["200"] > 200)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    # Linux resets a connection that is made between the last look into the backlog and the socket's end.
    assert outcomes.pop("ConnectionResetError", 0) <= MAX_RESET
    assert set(outcomes) == {"200"}


def test_requests_that_are_on_their_way_when_the_gateway_ends_are_answered(opensearch_url: str) -> None:
    with contextlib.ExitStack() as exits:
        with gateway_to(opensearch_url) as url:
            address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
            late, half, again = (exits.enter_context(socket.create_connection(address, 20)) for _ in range(3))
            head = b"GET /_ttc/health HTTP/1.1\r\nhost: x\r\n"
            half.sendall(head)
            again.sendall(head + b"\r\n")
            assert again.recv(10_000).startswith(b"HTTP/1.1 200")

            def send() -> None:
                until(lambda: call_refused(address))
                for connection, rest in ((late, head + b"\r\n"), (half, b"\r\n"), (again, head + b"\r\n")):
                    connection.sendall(rest)

            sender = threading.Thread(target=send)
            sender.start()
        sender.join(PATIENCE_SECONDS)
        for connection in (late, half, again):
            answered = b"".join(iter(lambda one=connection: one.recv(10_000), b""))  # type: ignore[misc]
            assert answered.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answered


def call_refused(address: tuple[str, int]) -> bool:
    """Return whether nothing listens at an address any more."""
    try:
        socket.create_connection(address, 20).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("setting", ["max_caller_windows_per_second", "max_caller_requests"])
def test_a_client_with_one_connection_gets_what_the_limit_says(
    stack: SearchStack, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(OnlyProcess, "count", 4)
    settings = GatewaySettings(engine=stack.engine, port=0, **{setting: 8})  # type: ignore[arg-type]
    path, body = f"/{stack.index}/_search", {"query": {"match": {"text": "cat"}}, "rescore": {"ttc": {}}}
    with running_gateway(settings) as url:
        if setting == "max_caller_requests":
            body = {"query": {"match": {"text": "cat"}}, "size": 0}
        with ThreadPoolExecutor(8) as clients:
            statuses = [clients.submit(call, url, "POST", path, body) for _ in range(8)]
        assert [one.result().status for one in statuses] == [200] * 8


def test_limits_are_divided_among_workers() -> None:
    settings = GatewaySettings(workers=4, max_concurrent_requests=256, max_buffered_mb=512)
    own = worker_settings(settings)
    assert (own.max_concurrent_requests, own.max_connections) == (64, 1024)
    assert own.max_buffered_mb == 128
    assert worker_settings(settings.model_copy(update={"max_buffered_mb": 200})).max_buffered_mb == 100
