"""A client that shows an answer as it is: status, headers, bytes."""

import gzip
import http.client
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from es_ttc.serving.http import jsonio


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        packed = self.headers.get("content-encoding") == "gzip"
        return orjson.loads(gzip.decompress(self.body) if packed else self.body)

    @property
    def ids(self) -> list[str]:
        return [hit["_id"] for hit in self.json()["hits"]["hits"]]

    @property
    def scores(self) -> list[float]:
        return [hit["_score"] for hit in self.json()["hits"]["hits"]]

    @property
    def reason(self) -> str:
        reason: str = self.json()["error"]["root_cause"][0]["reason"]
        return reason


def call(
    url: str,
    method: str,
    target: str,
    body: bytes | dict[str, Any] | Iterable[Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send one request; the target goes out byte for byte, dictionaries as NDJSON, other iterable bodies in chunks."""
    data, sent = _encoded(body)
    sent |= headers or {}
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        chunked = data is not None and not isinstance(data, bytes)
        if chunked:
            connection.putheader("transfer-encoding", "chunked")
        elif isinstance(data, bytes):
            connection.putheader("content-length", str(len(data)))
        for name, value in sent.items():
            connection.putheader(name, value)
        connection.endheaders(data, encode_chunked=chunked)
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, received, response.read())
    finally:
        connection.close()


def _encoded(body: Any) -> tuple[bytes | Iterable[bytes] | None, dict[str, str]]:
    if isinstance(body, dict):
        return jsonio.dumps(body), {"content-type": "application/json"}
    if isinstance(body, list | tuple) and all(isinstance(line, dict) for line in body):
        return b"".join(orjson.dumps(line) + b"\n" for line in body), {"content-type": "application/x-ndjson"}
    return body, {}


def search(url: str, index: str, body: dict[str, Any], query: str = "") -> Reply:
    """Run one `_search`."""
    return call(url, "POST", f"/{index}/_search{query}", body)
