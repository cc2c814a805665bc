"""Requests that no client sends: raw HTTP, bodies and sections put together at random, mostly nearly right."""

import gzip
import json
import random
import re
import time
from collections.abc import Callable
from typing import Any

from tests.support.raw_http import connect

METHODS = ["spectral", "maxsim", "dense", "mmr", "nnn", "rgs", "gar", "lexhybridrrf", "bm25", "", "nope", "program"]
APIS = ["_search", "_msearch", "_search/template", "_msearch/template", "_count", "_bulk", "_doc/1"]
OWN = ["/_ttc/", "/_ttc/rerank", "/_ttc/score", "/_ttc/encode", "/_ttc/jobs", "/_ttc/jobs/x/_pause", "/_ttc/metrics"]
TYPES = [
    "application/json",
    "application/x-ndjson",
    "application/cbor",
    "text/plain",
    "application/vnd.es-ttc+cbor",
    "",
]
LARGE = 200_000
WIDE = 3000
_REFUSED = 20


class Fuzzer:
    """Makes requests.

    Args:
        index: An index that exists.
        seed: The same seed makes the same requests.
    """

    def __init__(self, index: str, seed: int) -> None:
        self.random = random.Random(seed)
        self._index = index

    def request(self) -> bytes:
        """Return one request as bytes, not always a whole one."""
        kind: Callable[[], bytes] = self.random.choice(
            [self._bytes, self._line, self._headers, self._framing, *[self._sensible] * 8]
        )
        data = kind()
        if self.random.random() < 0.1:
            data = data[: self.random.randrange(len(data) + 1)]
        if self.random.random() < 0.1:
            data = self._mutated(data)
        return data

    def body(self) -> tuple[str, bytes]:
        """Return an interface of the engine's and a body for it."""
        api = self.random.choice(APIS[:4] * 4 + APIS)
        if "msearch" in api or api == "_bulk":
            lines = [self._json(self._search()) for _ in range(self.random.choice([1, 2, 4]))]
            lines *= min(self.random.choice([1, 1, 10, 500]), 1 + 2**20 // sum(map(len, lines)))
            heads = [self._json(self.random.choice([{}, {"index": self._index}, {"index": [self._name()] * 3}, 1]))]
            return api, b"".join(heads[0] + b"\n" + line + b"\n" for line in lines)
        if "template" in api:
            return api, self._json(
                {"source": self.random.choice([self._search(), self._text()]), "params": self._any(3)}
            )
        return api, self._json(self._search())

    def _sensible(self) -> bytes:
        if self.random.random() < 0.25:
            path, body = self.random.choice(OWN), self._json(self._own())
        else:
            api, body = self.body()
            path = f"/{self.random.choice([self._index] * 6 + [self._name(), '*', '_all'])}/{api}"
        query = self.random.choice(
            [""] * 6 + ["?filter_path=" + self._path(), "?pretty", "?source=" + "x" * 50, "?q=cat"]
        )
        extra = []
        if self.random.random() < 0.15:
            body = gzip.compress(body, 1)
            extra.append("content-encoding: gzip")
        head = [
            f"{self.random.choice(['POST'] * 8 + ['GET', 'PUT', 'DELETED'])} {path}{query} HTTP/1.1",
            "host: x",
            f"content-type: {self.random.choice(TYPES[:2] * 4 + TYPES)}",
            f"content-length: {len(body)}",
            *extra,
        ]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body

    def _search(self) -> dict[str, Any]:
        body: dict[str, Any] = {"size": self.random.choice([0, 1, 10, 60])}
        body["query"] = self.random.choice(
            [
                {"match": {"text": self._text()}},
                {"match_all": {}},
                {"ttc": self._section()},
                {"knn": {"field": "ttc.vector", "query_text": self._text(), "k": 5, "ttc": self._section()}},
                {"bool": {"should": [{"match": {"text": self._text()}}] * self.random.choice([1, 20])}},
                self._any(3),
            ]
        )
        if self.random.random() < 0.8:
            item = {"window_size": self.random.choice([1, 10, 100, 1000, -1, 10**30, "x"]), "ttc": self._section()}
            body["rescore"] = self.random.choice([item, [item], [item, item], self._any(2)])
        if self.random.random() < 0.4:
            key = self.random.choice(
                [
                    "collapse",
                    "knn",
                    "from",
                    "size",
                    "explain",
                    "docvalue_fields",
                    "fields",
                    "aggs",
                    "pit",
                    "timeout",
                    "sort",
                ]
            )
            body[key] = self.random.choice([self._any(3), {"field": "group"}, 10, "10ms", True])
        return body

    def _section(self) -> Any:
        section: dict[str, Any] = {"method": self.random.choice(METHODS)}
        for key in (
            "query_text",
            "query_texts",
            "params",
            "timeout",
            "on_error",
            "detail",
            "score_mode",
            "query_weight",
        ):
            if self.random.random() < 0.3:
                section[key] = self._any(2)
        if self.random.random() < 0.7:
            section["query_text"] = self._text()
        if self.random.random() < 0.3:
            key = self.random.choice(["scales", "top_m", "k", "lambda1", "aggregation", "query", "budget", "x"])
            section["params"] = {key: self._any(2)}
        return section if self.random.random() < 0.97 else self._any(2)

    def _own(self) -> Any:
        texts = [self._text() for _ in range(self.random.choice([1, 5, 50]))]
        return self.random.choice(
            [{"query": self._text(), "documents": texts, "method": self.random.choice(METHODS)}, self._any(3), texts]
        )

    def _any(self, depth: int) -> Any:
        """Return any JSON value."""
        choice = self.random.random()
        if depth and choice < 0.4:
            width = self.random.choice([0, 1, 3, 3, 3, WIDE])
            below = 0 if width == WIDE else depth - 1
            if choice < 0.2:
                return {self._name(): self._any(below) for _ in range(width)}
            return [self._any(below) for _ in range(width)]
        if 0.4 <= choice < 0.41:
            nested: Any = 1
            for _ in range(self.random.choice([50, 200])):
                nested = self.random.choice([[nested], {"a": nested}])
            return nested
        return self.random.choice(
            [0, 1, -1, 0.5, 10**18, 1e308, True, None, "", "spectral", "1s", self._word(), [], {}, self._name()]
        )

    def _text(self) -> str:
        length = self.random.choice([1, 5, 5, 5, 5, 5, 200, 200, 10_000])
        return " ".join(
            self.random.choices(["cat", "owl", "the", "\u0000", "🐈", "\n", "a*", "é", "ttc", '"'], k=length)
        )

    def _word(self) -> str:
        return self.random.choice(["cat", "cat owl", "*", "10ms", "ttc.vector"])

    def _name(self) -> str:
        return "".join(self.random.choices("abc_*.-%", k=self.random.choice([1, 4, 8])))

    def _path(self) -> str:
        return "".join(self.random.choices(["**", "*", ".", "hits", "_id", "a", ",", "-", "*a"], k=60))

    def _json(self, data: Any) -> bytes:
        body = json.dumps(data, ensure_ascii=False).encode()
        if len(body) > 2**20:
            body = b'{"rescore":{"ttc":{}}}'
        return body if self.random.random() < 0.97 else self._mutated(body)

    def _bytes(self) -> bytes:
        return self.random.randbytes(self.random.choice([1, 10, 1000, 70_000]))

    def _line(self) -> bytes:
        target = "".join(
            self.random.choices(
                [
                    "/",
                    "*",
                    "@",
                    "127.0.0.1:9",
                    "http://",
                    "?",
                    "#",
                    "%",
                    "%00",
                    "..",
                    "\\",
                    self._index,
                    "_search",
                    " ",
                ],
                k=self.random.choice([1, 3, 6, 2000]),
            )
        )
        method = self.random.choice(["GET", "POST", "OPTIONS", "CONNECT", "HEAD", "TRACE", "G T", "", "PRI"])
        version = self.random.choice(["HTTP/1.1"] * 5 + ["HTTP/1.0", "HTTP/2.0", "HTTP/9", ""])
        return f"{method} {target} {version}\r\nhost: x\r\n\r\n".encode()

    def _headers(self) -> bytes:
        names = [
            "host",
            "x-a",
            "authorization",
            "connection",
            "expect",
            "upgrade",
            "accept",
            "te",
            "cookie",
            "x-opaque-id",
        ]
        values = [
            "x",
            "close",
            "keep-alive",
            "100-continue",
            "websocket",
            "a" * self.random.choice([1, 20_000]),
            "\x0b",
        ]
        lines = [
            f"{self.random.choice(names)}: {self.random.choice(values)}"
            for _ in range(self.random.choice([1, 10, 400]))
        ]
        return (
            f"GET /{self._index}/_count HTTP/1.1\r\n{chr(13) + chr(10)}".encode()[:-2]
            + "\r\n".join(lines).encode()
            + b"\r\n\r\n"
        )

    def _framing(self) -> bytes:
        lengths = self.random.choices(
            ["content-length: 5", "content-length: -1", "content-length: 99999", "transfer-encoding: chunked",
             "transfer-encoding: gzip, chunked", "content-length: 5, 5", "transfer-encoding: x"],
            k=self.random.choice([1, 2]),
        )  # fmt: skip
        body = self.random.choice(
            [b"5\r\nabcde\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"5;" + b"a" * LARGE, b"abcde", b""]
        )
        return (
            f"POST /{self._index}/_search HTTP/1.1\r\nhost: x\r\n".encode()
            + "\r\n".join(lengths).encode()
            + b"\r\n\r\n"
            + body
        )

    def _mutated(self, data: bytes) -> bytes:
        if not data:
            return data
        changed = bytearray(data)
        for _ in range(self.random.choice([1, 3, 20])):
            changed[self.random.randrange(len(changed))] = self.random.randrange(256)
        return bytes(changed)


def attack(gateway: str, index: str, seed: int, end: float) -> tuple[int, list[bytes]]:
    """Send requests until it is time to end; return how many, and the answers that tell of a defect of ours.

    It ends early where nothing listens any more: then the test is gone.
    """
    fuzzer, count, refused, defects = Fuzzer(index, seed), 0, 0, list[bytes]()
    while time.monotonic() < end and refused < _REFUSED:
        data = fuzzer.request()
        count += 1
        try:
            with connect(gateway, timeout=4) as connection:
                connection.sendall(data)
                if fuzzer.random.random() < 0.9:
                    answer = connection.recv(65536)
                    if re.match(rb"HTTP/1.1 500", answer) and b"ttc_" in answer:
                        defects.append(data[:2000] + b" -> " + answer[:500])
        except ConnectionRefusedError:
            refused += 1
        except OSError:
            continue
    return count, defects
