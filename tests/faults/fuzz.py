"""Requests that no client sends: right ones with parts of their JSON, their head or their bytes exchanged at random."""

import copy
import gzip
import json
import random
import re
import time
from typing import Any

from tests.support.raw_http import connect

_REFUSED = 20
SECTION = {"method": "spectral", "query_text": "cat", "params": {"scales": [1, 3]}, "timeout": "1s", "detail": True}
SEARCHES: list[dict[str, Any]] = [
    {"query": {"match": {"text": "cat"}}, "size": 10, "rescore": {"window_size": 20, "ttc": SECTION}},
    {"query": {"match": {"text": "owl"}}, "rescore": [{"ttc": {"candidates": {"knn": 9}}}, {"ttc": {"method": "mmr"}}]},
    {"query": {"match": {"text": "cat"}}, "collapse": {"field": "group"}, "from": 3, "rescore": {"ttc": {}}},
    {"query": {"ttc": {"method": "rm3", "query_text": "cat", "params": {"tau": 0.3}}}, "explain": True},
    {"knn": {"field": "ttc.vector", "query_text": "cat", "k": 5, "ttc": {"method": "nnn", "params": {"l1": 0.1}}}},
    {"retriever": {"standard": {"query": {"match_all": {}}}}, "ext": {"ttc": SECTION}, "aggs": {}, "timeout": "9ms"},
]
OWN: dict[str, Any] = {
    "rerank": {"model": "dense", "query": "cat", "documents": ["a cat", {"text": "an owl"}], "top_n": 1},
    "embeddings": {"input": ["a cat", "an owl"], "model": "minilm"},
    "jobs": {"index": "any", "tau": 0.5},
    "score": {"method": "dense"},
    "metrics": None,
}
LEAVES: list[Any] = [
    0,
    1,
    -1,
    0.5,
    10**18,
    1e308,
    10**30,
    True,
    None,
    "",
    "spectral",
    "1s",
    "*",
    "ttc.vector",
    "\u0000\n",
    [],
    {},
]
DEEP = [json.loads("[" * 200 + "]" * 200), ["x" * 9] * 3000, {f"k{number}": 1 for number in range(3000)}, "cat " * 9000]
HEADS = (
    *("x-a: " + "a" * 20_000, "host: y", "connection: close", "expect: 100-continue", "upgrade: websocket", "te: \x0b"),
    *("content-length: 5", "content-length: -1", "content-length: 99999", "transfer-encoding: chunked"),
    *("transfer-encoding: gzip, chunked", "transfer-encoding: x", "content-encoding: gzip", *["x-b: y"] * 3),
)
TARGETS = ["*", "@", "127.0.0.1:9", "http://", "?", "#", "%", "%00", "..", "\\", " ", "/", "x" * 9000]
TYPES = ["application/x-ndjson", "application/cbor", "text/plain", "application/vnd.es-ttc+cbor", ""]
CHUNKS = [b"5\r\nabcde\r\n0\r\n\r\n", b"f" * 16 + b"\r\n", b"5;" + b"a" * 200_000]


class Fuzzer:
    """Makes requests to an index that exists; the same seed makes the same ones."""

    def __init__(self, index: str, seed: int) -> None:
        self.random = random.Random(seed)
        self._index = index

    def request(self) -> bytes:
        """Return one request as bytes, not always a whole one."""
        api = self._one(["_search"] * 3 + ["_msearch", "_search/template", "_msearch/template", "_bulk", *OWN])
        target = f"/_ttc/{api}" if api in OWN else f"/{self._one([self._index] * 6 + ['*', '_all', 'no-such'])}/{api}"
        bodies = [self._changed(OWN.get(api) or self._one(SEARCHES)) for _ in range(self._one([1, 1, 2, 50]))]
        if "template" in api:
            bodies = [{"source": body, "params": {}} for body in bodies]
        lines = bodies[:1]
        if many := api in ("_msearch", "_msearch/template", "_bulk"):
            lines = [line for body in bodies for line in ({"index": self._index}, body)]
        body = b"\n".join(json.dumps(line, ensure_ascii=False).encode() for line in lines) + b"\n" * many
        query = self._one([""] * 9 + ["?filter_path=**.a*,-hits", "?pretty", "?source=" + "x" * 50, "?q=cat"])
        if self._seldom():
            target = "".join(self.random.choices([target, *TARGETS], k=self._one([1, 3, 300])))
        if self._seldom():
            body = self._one([gzip.compress(body, 1), *CHUNKS])
        kind = self._one(TYPES) if self._seldom() else f"application/{'x-nd' if many else ''}json"
        method = self._one(["POST"] * 12 + ["GET", "PUT", "HEAD", "CONNECT", "G T", ""])
        version = self._one(["HTTP/1.1"] * 12 + ["HTTP/1.0", "HTTP/9", ""])
        head = [
            f"{method} {target}{query} {version}",
            "host: x",
            f"content-type: {kind}",
            f"content-length: {len(body)}",
        ]
        if self._seldom():
            head += self.random.choices(HEADS, k=self._one([1, 2, 400]))
        data = "\r\n".join(head).encode() + b"\r\n\r\n" + body
        if self._seldom():
            cut = data[: self.random.randrange(len(data))]
            data = self._one([self.random.randbytes(1000), cut, self._flipped(data)])
        return data

    def _one(self, values: Any) -> Any:
        return self.random.choice(values)

    def _seldom(self) -> bool:
        return self.random.random() < 0.12

    def _changed(self, value: Any) -> Any:
        """Return JSON in which values are exchanged, left out and added."""
        value = copy.deepcopy(value)
        for _ in range(self._one([0, 1, 1, 2, 5])):
            parent: Any = None
            place, below = None, value
            while isinstance(below, dict | list) and below and (parent is None or self.random.random() < 0.8):
                parent = below
                place = self._one(list(below) if isinstance(below, dict) else range(len(below)))
                below = below[place]
            if parent is None:
                return self._one(LEAVES)
            if self.random.random() < 0.2:
                del parent[place]
            elif self.random.random() < 0.2 and isinstance(parent, dict):
                name = self._one([*SECTION, "size", "sort", "pit", "window_size", "x"])
                parent[name] = copy.deepcopy(self._one([*LEAVES, SECTION]))
            else:
                parent[place] = copy.deepcopy(self._one(DEEP if self._seldom() else [*LEAVES, [below], {"a": below}]))
        return value

    def _flipped(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._one([1, 3, 20])):
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
