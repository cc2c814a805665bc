"""What benchmarks of the gateway share: an index whose documents carry random token vectors, the gateway, a client.

The gateway runs as a process of its own, as it does in use. Nothing has to be encoded but queries.
"""

import asyncio
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import orjson
import psutil
from numpy.typing import NDArray

from es_ttc.encoders import load_encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.ingest.encode import DocumentFeatures, action_lines, token_features
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.reranking.index_graph import delete_graphs
from es_ttc.settings import EngineSettings
from es_ttc.vectors.tokens import Float32

QUERY = "one query for all"
ENCODER = "minilm@onnx"
GROUPS = 12
SHELVES = 10
WINDOW = 100
TOKENS = 256
DIMS = 384


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway.

    Attributes:
        url: Where it listens.
        pid: The process that answers; of several, one.
    """

    url: str
    pid: int


def percentiles(times: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    """Connect to the engine."""
    engine = await connect(EngineSettings(engine=url))
    try:
        yield engine
    finally:
        await engine.close()


async def delete(engine: Engine, *indices: str) -> None:
    """Delete what is there of these indices."""
    for index in indices:
        if await engine.exists(index):
            await engine.delete_index(index)


async def make_index(engine: Engine, index: str, spec: IndexSpec) -> None:
    """Make an index anew: one shard, no replica."""
    await delete(engine, index)
    await create_index(engine, index, spec, IndexOptions(shards=1, replicas=0))


@asynccontextmanager
async def temporary_index(url: str, index: str, spec: IndexSpec) -> AsyncIterator[Engine]:
    """Connect to the engine and make an index anew; delete it and its graphs at the end."""
    async with opened(url) as engine:
        await make_index(engine, index, spec)
        try:
            yield engine
        finally:
            await delete_graphs(engine, index)
            await delete(engine, index)


async def fill(engine: Engine, index: str, *, groups: int = GROUPS, least: int = TOKENS) -> None:
    """Make the index anew: groups of :data:`WINDOW` documents, each found by a word of its own.

    Documents have :data:`TOKENS` tokens, or as many as that on average and ``least`` at least, and a number of a shelf.
    """
    spec = IndexSpec(load_encoder(ENCODER).identity, text_fields=("text",))
    await make_index(engine, index, spec)
    for group in range(groups):
        lines: list[bytes] = []
        for name, text, matrix in documents(group, least):
            source = orjson.dumps({"text": text, "shelf": len(lines) // 2 % SHELVES})
            lines += action_lines(name, source, "", features(matrix, spec, text), spec)
        await bulk(engine, index, lines)
    await engine.refresh(index)


async def bulk(engine: Engine, index: str, lines: Sequence[bytes], *, at_once: int = 40) -> None:
    """Write lines of a bulk, an even number at once; every document must be taken."""
    for start in range(0, len(lines), at_once):
        items = await engine.bulk(index, lines[start : start + at_once])
        assert all(item.ok for item in items), next(item.error for item in items if not item.ok)


def documents(group: int, least: int = TOKENS) -> Iterator[tuple[str, str, Float32]]:
    """Yield a group's documents, the same at every call: id, text, unit token vectors; see :func:`fill`."""
    rng = np.random.default_rng(group)
    for number in range(WINDOW):
        text = f"group{group} " + " ".join(map(str, rng.integers(0, 500, 200)))  # about TOKENS tokens
        tokens = TOKENS if least == TOKENS else int(rng.integers(least, 2 * TOKENS - least + 1))
        matrix = rng.standard_normal((tokens, DIMS), dtype=np.float32)
        yield f"{group}-{number}", text, matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def features(matrix: Float32, spec: IndexSpec, text: str) -> DocumentFeatures:
    """Return what ingest would store of a document."""
    return features_of_all([matrix], [text], spec)[0]


def features_of_all(matrices: Sequence[Float32], texts: Sequence[str], spec: IndexSpec) -> list[DocumentFeatures]:
    """Return what ingest would store of documents, encoded at once."""
    return [
        DocumentFeatures(
            content_hash(*compose({"text": text}, spec.text_fields), spec),
            matrix[0],
            token_features(matrix, _offsets(len(matrix)), spec),
            truncated=False,
        )
        for matrix, text in zip(matrices, texts, strict=True)
    ]


def _offsets(tokens: int) -> NDArray[np.int32]:
    """Return the places of tokens of four characters each in the first field."""
    starts = 4 * np.arange(tokens)
    return np.stack([np.zeros_like(starts), starts, starts + 4], axis=1).astype(np.int32)


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def gateway(engine: str, *, port: int = 0, folder: Path | None = None, **settings: object) -> Iterator[Gateway]:
    """Run a gateway and wait until it has loaded its encoder.

    Args:
        engine: The engine's URL.
        port: Where it listens; 0 takes a free one.
        folder: That of the version of es-ttc to run, with its compiled loops; None for this one.
        settings: What its environment tells it, by the settings' names; one process unless ``workers`` says otherwise.
    """
    told = {f"ES_TTC_{name.upper()}": str(value) for name, value in {"workers": 1, **settings}.items()}
    flags = ["--engine", engine, "--port", str(port), "--encoder", ENCODER, "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "es_ttc", "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        env={**os.environ, **told, **({} if folder is None else {"PYTHONPATH": str(folder.resolve())})},
    ) as process:
        try:
            url = _ready_url(process)
            first = psutil.Process(process.pid)
            yield Gateway(
                url, next(iter(first.children()), first).pid
            )  # an earlier version with one worker has no other
        finally:
            process.terminate()


def _ready_url(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, "the gateway ended before it listened"
        text += line
    url: str = json.loads(text)["url"]
    with Client(url) as client:
        while not client.get("/_ttc/ready")["ready"]:
            time.sleep(0.2)
    return url


class Client:
    """One kept connection, with as little time of its own as Python has to offer."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> Any:
        """Return what a path answers."""
        return self._call("GET", path, None)

    def metric(self, name: str) -> float:
        """Return a metric of a gateway: of the labels in its name, or of all its labels together."""
        self._connection.request("GET", "/_ttc/metrics")
        lines = self._connection.getresponse().read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if name in (line.rpartition(" ")[0], line.partition("{")[0].split(" ")[0])
        )

    def put(self, path: str, body: object) -> Any:
        """Send JSON, and return the answer."""
        return self._call("PUT", path, json.dumps(body).encode())

    def search(self, body: bytes, index: str) -> Any:
        """Return the answer to a search."""
        return self._call("POST", f"/{index}/_search", body)

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        self._connection.request(method, path, body, {"content-type": "application/json"})
        return json.loads(self._connection.getresponse().read())


def query(group: int | None, *, rescore: bool, size: int = 10, window: int = WINDOW) -> bytes:
    """Return a search for a group's documents, for all where none is named."""
    found: dict[str, Any] = {"match_all": {}} if group is None else {"match": {"text": f"group{group}"}}
    body: dict[str, Any] = {"query": found, "size": size, "_source": False}
    if rescore:
        body["rescore"] = {"window_size": window, "ttc": {"method": "spectral", "query_text": QUERY}}
    return orjson.dumps(body)


async def answered(url: str, index: str, body: bytes, *, connections: int, seconds: float) -> list[float]:
    """Return the times in ms of all answers that clients get in so many seconds; each waits for its own."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections)) as session:

        async def client() -> None:
            while (started := time.perf_counter()) < end:
                async with session.post(
                    f"{url}/{index}/_search", data=body, headers={"content-type": "application/json"}
                ) as response:
                    await response.read()
                    assert response.status == 200, response.status
                times.append((time.perf_counter() - started) * 1000)

        await asyncio.gather(*(client() for _ in range(connections)))
    return times
