"""A server before a real engine that remembers what passes, and lets a test do something before it does."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.serving.client import Reply, call


@dataclass(frozen=True)
class Passed:
    """One request that came by."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def reads_features(self) -> bool:
        """Whether it is the gateway's own read of stored features."""
        return b'"collapse":{"field":"ttc.hash"}' in self.body


Before = Callable[[Passed], Reply | None]


@dataclass
class Relay:
    """What the server did.

    Attributes:
        url: Its address.
        before: Called before a request is passed on; an answer of its own is given in the engine's place.
        passed: The requests, in order.
    """

    url: str = ""
    before: Before = lambda _: None
    passed: list[Passed] = field(default_factory=list)


@contextmanager
def relay(engine: str) -> Iterator[Relay]:
    """Run the server on a free port."""
    state = Relay()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Passed(self.command, self.path, headers, body)
            state.passed.append(request)
            kept = {name: value for name, value in headers.items() if name not in ("host", "content-length")}
            reply = state.before(request) or call(engine, request.method, request.target, body or None, kept)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                if name not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = answer  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that leaves is no error here."""

    server = Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
