"""Where the processor time of a search goes that passes through the gateway. Needs a running engine.

    python -m benchmarks.pass_through --engine http://127.0.0.1:9200

Sixteen connections ask for ten hits, through the gateway and around it, through a proxy of a few lines on the same
server and HTTP client (what any Python gateway on them costs at least), and of that server alone, which answers a
constant of the same size. Each is a process of its own. Processor time of a request hardly depends on what else the
machine does, where rates do; with every core busy the rate through the gateway is to the engine's own as the processor
time of engine and client is to that of all three.
"""

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import aiohttp
import orjson
import psutil
import uvicorn
from starlette.types import Receive, Scope, Send

from benchmarks.common import heading, table
from benchmarks.served import Client, bulk, delete, gateway, opened
from es_ttc.engine.http import open_session
from es_ttc.engine.protocol import Engine
from es_ttc.settings import EngineSettings

INDEX = "benchmark-pass-through"
CONNECTIONS = 16
REQUESTS = 4000
TURNS = 5
_STATS_SECONDS = 1.1
"""The engines look at their own processor time once a second at most."""
BODY = orjson.dumps({"query": {"match": {"text": "word"}}, "size": 10})
PATH = f"/{INDEX}/_search"
JSON = {"content-type": "application/json"}


class Constant:
    """Answers every request with the same bytes: what the server itself costs."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        length = (b"content-length", str(len(self._answer)).encode())
        headers = [(b"content-type", b"application/json"), length]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._answer})


class Bare:
    """Passes requests on and answers back, and does nothing else."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if self._session is None:
            self._session = open_session(EngineSettings(engine=self._engine))
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"] if name != b"host"}
        async with self._session.request(
            scope["method"], self._engine + scope["path"], headers=headers, data=body
        ) as response:
            answer = await response.read()
            await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
            await send({"type": "http.response.body", "body": answer})


@dataclass(frozen=True, slots=True)
class Measured:
    """Processor time of one request, in microseconds, and requests a second."""

    server: float
    engine: float
    client: float
    rate: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--serve", choices=("constant", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        _serve(arguments.serve, arguments.port, arguments.engine)
        return
    asyncio.run(_fill(arguments.engine))
    try:
        _report(arguments.engine)
    finally:
        asyncio.run(_clear(arguments.engine))


def _serve(what: str, port: int, engine: str) -> None:
    with Client(engine) as client:
        answer = orjson.dumps(client.search(BODY, INDEX))
    app = Constant(answer) if what == "constant" else Bare(engine)
    uvicorn.run(
        app,
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
    )


async def _fill(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)
        await engine.create_index(INDEX, {"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
        text = orjson.dumps({"text": "some words of a text, one word after the other " * 5})
        await bulk(engine, INDEX, [line for one in range(100) for line in (b'{"index":{"_id":"%d"}}' % one, text)])
        await engine.refresh(INDEX)


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


def _report(engine: str) -> None:
    with ExitStack() as stack:
        through = stack.enter_context(gateway(engine, compiled=False))
        ports = {what: stack.enter_context(_server(what, engine)) for what in ("bare", "constant")}
        servers = {
            "engine alone": (engine, None),
            "the gateway": (through.url, psutil.Process(through.pid)),
            "a proxy of a few lines": ports["bare"],
            "the server alone": ports["constant"],
        }
        runs: dict[str, list[Measured]] = {name: [] for name in servers}
        for turn in range(TURNS + 1):
            for name, (url, process) in servers.items():
                measured = asyncio.run(_measure(engine, url, process))
                if turn:  # the first one warms up
                    runs[name].append(measured)
    medians = {
        name: Measured(*(statistics.median(getattr(one, part) for one in several) for part in Measured.__slots__))
        for name, several in runs.items()
    }
    print(heading("Pass-through", data=f"{CONNECTIONS} connections, ten hits a search", packages=_PACKAGES))
    print(f"Load average: {os.getloadavg()[0]:.1f}\n")
    print(table(("µs of processor time a request", "it", "engine", "client", "requests/s"), _rows(medians)))
    print(table(("of the gateway's processor time", "µs", "share"), _parts(medians)))
    direct, passed = medians["engine alone"], medians["the gateway"]
    bound = (direct.engine + direct.client) / (passed.server + passed.engine + passed.client)
    print(f"Rate of the engine's own: {passed.rate / direct.rate:.2f}; by processor time alone: {bound:.2f}")


_PACKAGES = ("uvicorn", "uvloop", "httptools", "aiohttp")


def _rows(medians: Mapping[str, Measured]) -> list[tuple[str, ...]]:
    return [
        (name, f"{one.server:.0f}" if one.server else "", f"{one.engine:.0f}", f"{one.client:.0f}", f"{one.rate:.0f}")
        for name, one in medians.items()
    ]


def _parts(medians: Mapping[str, Measured]) -> list[tuple[str, ...]]:
    server, bare, whole = (
        medians[name].server for name in ("the server alone", "a proxy of a few lines", "the gateway")
    )
    parts = (
        ("reading requests and writing answers (uvicorn, httptools, uvloop)", server),
        ("asking the engine (aiohttp)", bare - server),
        ("the gateway's own code", whole - bare),
    )
    return [(name, f"{value:.0f}", f"{100 * value / whole:.0f} %") for name, value in parts]


async def _measure(engine: str, url: str, process: psutil.Process | None) -> Measured:
    left = REQUESTS
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with opened(engine) as admin, aiohttp.ClientSession(connector=connector) as session:

        async def client() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                async with session.post(url + PATH, data=BODY, headers=JSON) as response:
                    await response.read()
                    assert response.status == 200, response.status

        before = await _engine_seconds(admin), _seconds(process), time.process_time(), time.perf_counter()
        await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
        after = time.perf_counter(), time.process_time(), _seconds(process), await _engine_seconds(admin)
    elapsed, own, server, engines = (late - early for late, early in zip(after, reversed(before), strict=True))
    per_request = 1e6 / REQUESTS
    return Measured(server * per_request, engines * per_request, own * per_request, REQUESTS / elapsed)


async def _engine_seconds(admin: Engine) -> float:
    await asyncio.sleep(_STATS_SECONDS)
    answer = await admin.request("GET", "/_nodes/stats/process")
    return float(sum(node["process"]["cpu"]["total_in_millis"] for node in answer["nodes"].values())) / 1000


def _seconds(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def _server(what: str, engine: str) -> Iterator[tuple[str, psutil.Process]]:
    port = _free_port()
    command = [sys.executable, "-m", "benchmarks.pass_through", "--serve", what, "--port", str(port)]
    with subprocess.Popen([*command, "--engine", engine], stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            while True:
                try:
                    with Client(url) as client:
                        client.search(BODY, INDEX)
                    break
                except OSError:
                    time.sleep(0.1)
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
