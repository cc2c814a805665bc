"""Small HTTP servers that answer as a test says."""

import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
from aiohttp import web


@asynccontextmanager
async def server_of(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Run a server in this loop, and yield its address."""
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextmanager
def server_beside(answer: Callable[[str, bytes], tuple[int, Any]]) -> Iterator[str]:
    """Run a server in threads, and yield its address.

    Args:
        answer: Returns status and content, bytes or what becomes JSON, for the path and the body of a request.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = answer(self.path, self.rfile.read(int(self.headers.get("content-length", 0))))
            raw = content if isinstance(content, bytes) else orjson.dumps(content)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            with suppress(ConnectionError):  # the client has given up
                self.wfile.write(raw)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
