"""Servers of a few lines on the gateway's own server and HTTP client: what any Python gateway on them costs at least.

`benchmarks.pass_through` and `benchmarks.search_cost` run them, each as a process of its own.
"""

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import aiohttp
import orjson
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.served import WINDOW, Gateway, free_port
from es_ttc.engine.http import open_session
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.settings import EngineSettings

What = Literal["constant", "proxy", "two-requests"]

_JSON = {"content-type": "application/json"}


class Constant:
    """Answers every request with the same bytes: what the server itself costs."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Answer one request."""
        await _read(receive)
        await _send_json(send, self._answer)


class _BeforeEngine:
    """What has a session with the engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session, opened when it is first used: in the event loop."""
        if self._session is None:
            self._session = open_session(EngineSettings(engine=self.engine))
        return self._session


class Proxy(_BeforeEngine):
    """Passes requests on and answers back, and does nothing else."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode(): value.decode() for name, value in scope["headers"] if name != b"host"}
        async with self.session.request(
            scope["method"], self.engine + scope["path"], headers=headers, data=await _read(receive)
        ) as response:
            answer = await response.read()
            await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
            await send({"type": "http.response.body", "body": answer})


class TwoRequests(_BeforeEngine):
    """Sends the two requests that a rescored search needs, the window's hashes, then the page, and reads their JSON.

    It checks nothing, scores nothing, and has no limits, rights, metrics or log.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a search with the first of the window's documents."""
        search: dict[str, Any] = orjson.loads(await _read(receive))
        search.pop("rescore", None)
        size = search.get("size", 10)
        fields = [HASH, ENCODER]
        window = {"size": WINDOW, "stored_fields": "_none_", "docvalue_fields": fields}
        first = await self._search(scope["path"], {"query": search["query"], **window})
        hashes = [hit["fields"][HASH][0] for hit in first["hits"]["hits"][:size]]
        page = {"bool": {"must": [search["query"]], "filter": [{"terms": {HASH: hashes}}]}}
        await _send_json(send, orjson.dumps(await self._search(scope["path"], {**search, "query": page, "size": size})))

    async def _search(self, path: str, body: dict[str, Any]) -> Any:
        async with self.session.post(self.engine + path, data=orjson.dumps(body), headers=_JSON) as response:
            return orjson.loads(await response.read())


@contextmanager
def running(what: What, engine: str, *, answer: bytes = b"") -> Iterator[Gateway]:
    """Run a server on a free port.

    Args:
        what: Which one.
        engine: The engine's URL.
        answer: What :class:`Constant` answers.
    """
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.bare_servers", what, "--engine", engine, "--port", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(answer)
            process.stdin.close()
            while not _listens(port):
                time.sleep(0.1)
                assert process.poll() is None, f"the server [{what}] ended before it listened"
            yield Gateway(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()


def main() -> None:
    """Serve until it is stopped; a constant answer is read from standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=get_args(What))
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    uvicorn.run(
        _app(options.what, options.engine),
        port=options.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
    )


def _app(what: What, engine: str) -> ASGIApp:
    match what:
        case "constant":
            return Constant(sys.stdin.buffer.read())
        case "proxy":
            return Proxy(engine)
        case "two-requests":
            return TwoRequests(engine)


async def _read(receive: Receive) -> bytes:
    """Return a request's whole body."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _send_json(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    main()
