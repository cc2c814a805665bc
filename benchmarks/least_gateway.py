"""The least that a gateway in Python can do for a rescored search: a bound for what our own steps can be saved.

It sends the two requests to the engine that a rescored search needs (the window's hashes, then the page), and reads and
writes JSON, on the same server and HTTP client as the gateway. It checks nothing, scores nothing, and has no limits,
rights, metrics or log. `benchmarks.search_cost` starts it.

    python -m benchmarks.least_gateway --engine http://127.0.0.1:9200 --port 8700
"""

import argparse
from typing import Any

import aiohttp
import orjson
import uvicorn
from starlette.types import Receive, Scope, Send

from benchmarks.served import WINDOW
from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.spec import ENCODER, HASH

_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


class LeastGateway:
    """An ASGI application.

    Args:
        engine: The engine's URL.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a search with the first of the window's documents."""
        if scope["type"] != "http":
            return
        search: dict[str, Any] = orjson.loads((await receive())["body"] or b"{}")
        size = search.get("size", 10)
        fields = [HASH, ENCODER, VERSION]
        window = {"size": WINDOW, "stored_fields": "_none_", "docvalue_fields": fields, "version": True}
        first = await self._search(scope["path"], {"query": search["query"], **window})
        hashes = [hit["fields"][HASH][0] for hit in first["hits"]["hits"][:size]]
        page = {"bool": {"must": [search["query"]], "filter": [{"terms": {HASH: hashes}}]}}
        search.pop("rescore", None)
        answer = await self._search(scope["path"], {**search, "query": page, "size": size})
        body = orjson.dumps(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _search(self, path: str, body: dict[str, Any]) -> Any:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=64)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        async with self._session.post(self._engine + path, data=orjson.dumps(body), headers=_HEADERS) as response:
            return orjson.loads(await response.read())


def main() -> None:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    uvicorn.run(LeastGateway(options.engine), port=options.port, lifespan="off", log_level="error", access_log=False)


if __name__ == "__main__":
    main()
