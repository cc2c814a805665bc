"""How an index and its searches grow with the number of documents. Needs a running engine.

    python -m benchmarks.corpus_size --engine http://127.0.0.1:9200
    python -m benchmarks.corpus_size --engine http://127.0.0.1:9200 --sizes 10000 100000 1000000 --codecs int2

Documents are made: 32 to 64 token vectors around the vector of one of 2,000 topics, and a text of as many words, drawn
by Zipf's law, which contains the words of its topic. Topics are pairs of phrases of `es-ttc demo`, encoded; queries are
topics. One shard, no replica. The index of a codec grows from size to size: each time it is written, merged to one
segment, and searched. `added` is the time that a search through the gateway takes longer than the same query to the
engine alone. Warm searches find all features in the gateway's memory; a cold one is the first of its topic.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import orjson

from benchmarks.common import heading, table
from benchmarks.served import ENCODER, Client, bulk, features_of_all, gateway, percentiles, temporary_index
from es_ttc.encoders import load_encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest.encode import action_lines
from es_ttc.index.mappings.contents import stored_bytes
from es_ttc.index.mappings.merging import merge_segments
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.demo.files import read_lines, read_rows
from es_ttc.lab.evaluation.features import encode_queries
from es_ttc.reranking.index_graph import build_graph, delete_graphs
from es_ttc.vectors.codecs import STORED_CODECS, StoredCodec
from es_ttc.vectors.tokens import Float32

INDEX = "benchmark-corpus-size"
TOPICS = 2000
SHORTEST, LONGEST = 32, 64
VOCABULARY = 50_000
SPREAD = 0.8
"""Length of a token's own part beside its topic's unit vector."""
QUERIES = 30
REPEATS = 3
METHODS = ("hybrid", "spectral", "blend")
WINDOW = 100
MEBIBYTE = 2**20

_BATCH = 200


@dataclass(frozen=True, slots=True)
class Made:
    """What documents are made of.

    Attributes:
        topics: The topics' words.
        vectors: ``(TOPICS, d)`` unit rows, their vectors.
    """

    topics: Sequence[str]
    vectors: Float32

    def document(self, number: int) -> tuple[str, Float32]:
        """Return a document's text and its unit token vectors, ``(n, d)``; the same at every call."""
        rng = np.random.default_rng(number)
        topic, length = int(rng.integers(TOPICS)), int(rng.integers(SHORTEST, LONGEST + 1))
        words = [f"word{rank}" for rank in np.minimum(rng.zipf(1.2, length), VOCABULARY)]
        own = rng.standard_normal((length, self.vectors.shape[1]), dtype=np.float32)
        own *= SPREAD / np.linalg.norm(own, axis=1, keepdims=True)
        matrix = self.vectors[topic] + own
        text = f"{self.topics[topic]} {' '.join(words)}"
        return text, matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


@dataclass(frozen=True, slots=True)
class Searched:
    """Times of searches, in ms.

    Attributes:
        engine: Median of the engine alone, ten hits of the BM25 query.
        added: By method median and 95th percentile of the time added, warm.
        cold: Median of what blend adds to the first search of a topic.
        nnn: Median of a kNN search by `nnn`.
        knn_searches: Median of the number of its kNN searches.
    """

    engine: float
    added: dict[str, tuple[float, float]]
    cold: float
    nnn: float
    knn_searches: float


@dataclass(frozen=True, slots=True)
class Size:
    """What was measured at one size.

    Attributes:
        documents: Number of documents.
        rate: Documents written a second since the size before, packing included.
        at_once: Bytes of the index after writing.
        merged: Bytes of one segment.
        merging: Seconds of waiting and merging.
        searched: The searches.
        graph: Seconds of building the neighbour graph; None where it was not built.
    """

    documents: int
    rate: float
    at_once: int
    merged: int
    merging: float
    searched: Searched
    graph: float | None


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--codecs", nargs="+", default=["int8", "int2"], choices=STORED_CODECS)
    parser.add_argument("--largest-graph", type=int, default=100_000, help="no graph is built of more documents")
    arguments = parser.parse_args()
    made = made_topics()
    measured = {
        codec: asyncio.run(_grown(arguments.engine, made, codec, sorted(arguments.sizes), arguments.largest_graph))
        for codec in arguments.codecs
    }
    data = f"{SHORTEST} to {LONGEST} token vectors of {made.vectors.shape[1]} components a document, {TOPICS:,} topics"
    print(heading("Size of the corpus", data=data, packages=("numpy", "aiohttp", "usearch")))
    for codec, sizes in measured.items():
        for title, columns, rows in _tables(codec, sizes):
            print(f"{title}\n\n{table(columns, rows)}")


def made_topics() -> Made:
    """Return the topics with their vectors; the same at every call."""
    phrases = [*read_lines("fillers.txt"), *(phrase for phrase, _ in read_rows("concepts.tsv"))]
    choices = random.Random(0)
    topics = [" ".join(choices.sample(phrases, 2)) for _ in range(TOPICS)]
    encoded = encode_queries(topics, load_encoder(ENCODER), tokens=False)
    return Made(topics, np.concatenate([one.vectors[:1] for one in encoded]))


async def _grown(url: str, made: Made, codec: StoredCodec, sizes: Sequence[int], largest_graph: int) -> list[Size]:
    """Let the index of a codec grow, and measure each size."""
    spec = IndexSpec(load_encoder(ENCODER).identity, text_fields=("text",), codec=codec)
    found = []
    async with temporary_index(url, INDEX, spec) as engine:
        for before, size in pairwise([0, *sizes]):
            found.append(await _size(engine, url, made, spec, range(before, size), largest_graph))
            print(f"{codec}: {found[-1]}", file=sys.stderr, flush=True)
    return found


async def _size(engine: Engine, url: str, made: Made, spec: IndexSpec, numbers: range, largest_graph: int) -> Size:
    rate = await _write(engine, made, spec, numbers)
    at_once = await _bytes(engine)
    started = time.perf_counter()
    await merge_segments(engine, INDEX)
    merging = time.perf_counter() - started
    searched = await asyncio.to_thread(_searched, url, made)
    graph = None
    if numbers.stop <= largest_graph:
        await delete_graphs(engine, INDEX)
        started = time.perf_counter()
        await build_graph(engine, INDEX)
        graph = time.perf_counter() - started
    return Size(numbers.stop, rate, at_once, await _bytes(engine), merging, searched, graph)


async def _write(engine: Engine, made: Made, spec: IndexSpec, numbers: range) -> float:
    """Write documents and return how many a second; the next ones are packed while the engine writes."""
    started = time.perf_counter()
    writing: asyncio.Task[None] | None = None
    for first in range(numbers.start, numbers.stop, _BATCH):
        some = range(first, min(first + _BATCH, numbers.stop))
        lines = await asyncio.to_thread(_packed, made, spec, some)
        if writing is not None:
            await writing
        writing = asyncio.create_task(bulk(engine, INDEX, lines))
    if writing is not None:
        await writing
    await engine.refresh(INDEX)
    return len(numbers) / (time.perf_counter() - started)


def _packed(made: Made, spec: IndexSpec, numbers: Sequence[int]) -> list[bytes]:
    texts, matrices = zip(*map(made.document, numbers), strict=True)
    every = features_of_all(matrices, texts, spec)
    return [
        line
        for number, text, own in zip(numbers, texts, every, strict=True)
        for line in action_lines(str(number), orjson.dumps({"text": text}), "", own, spec)
    ]


async def _bytes(engine: Engine) -> int:
    await engine.request("POST", f"/{INDEX}/_flush")
    found = await stored_bytes(engine, INDEX)
    assert found is not None
    return found


def _searched(url: str, made: Made) -> Searched:
    """Search through a gateway of its own, whose memory is empty."""
    topics = made.topics[: QUERIES + 5]
    with (
        gateway(url, feature_cache_mb=4096, scoring_timeout_ms=30_000) as served,
        Client(url) as direct,
        Client(served.url) as through,
    ):
        for topic in topics[QUERIES:]:  # loads what a first search loads
            for method in METHODS:
                through.search(_body(topic, method), INDEX)
            through.search(_retrieval(topic), INDEX)
        cold = statistics.median(_times(through, topics[:QUERIES], "blend"))
        plain = [_times(direct, topics[:QUERIES], None) for _ in range(REPEATS + 1)][1:]
        alone = statistics.median(time for turn in plain for time in turn)
        added = {}
        for method in METHODS:
            _times(through, topics[:QUERIES], method)
            warm = [time for _ in range(REPEATS) for time in _times(through, topics[:QUERIES], method)]
            p50, p95 = percentiles(warm)
            added[method] = p50 - alone, p95 - alone
        asked = [_retrieved(through, topic) for topic in topics[:QUERIES]]
    nnn, searches = (statistics.median(values) for values in zip(*asked, strict=True))
    return Searched(alone, added, cold - alone, nnn, searches)


def _times(client: Client, topics: Sequence[str], method: str | None) -> list[float]:
    times = []
    for topic in topics:
        started = time.perf_counter()
        answer = client.search(_body(topic, method), INDEX)
        times.append((time.perf_counter() - started) * 1000)
        assert method is None or answer["ttc"]["applied"], answer["ttc"]
    return times


def _body(topic: str, method: str | None) -> bytes:
    body: dict[str, Any] = {"query": {"match": {"text": topic}}, "size": 10}
    if method is not None:
        body["rescore"] = {"window_size": WINDOW, "ttc": {"method": method, "query_text": topic}}
    return orjson.dumps(body)


def _retrieval(topic: str) -> bytes:
    knn = {"field": "ttc.vector", "query_text": topic, "k": 10, "ttc": {"method": "nnn"}}
    return orjson.dumps({"size": 10, "knn": knn})


def _retrieved(client: Client, topic: str) -> tuple[float, int]:
    """Return the time of a kNN search by `nnn` in ms, and its number of kNN searches."""
    started = time.perf_counter()
    answer = client.search(_retrieval(topic), INDEX)
    return (time.perf_counter() - started) * 1000, answer["ttc"]["knn_searches"]


def _tables(codec: StoredCodec, sizes: Sequence[Size]) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    yield (
        f"### Written, {codec}",
        ("documents", "written a second", "MiB at once", "MiB merged", "bytes a document", "merging s", "graph s"),
        [
            (
                f"{one.documents:,}",
                f"{one.rate:,.0f}",
                f"{one.at_once / MEBIBYTE:,.0f}",
                f"{one.merged / MEBIBYTE:,.0f}",
                f"{one.merged / one.documents:,.0f}",
                f"{one.merging:.0f}",
                "-" if one.graph is None else f"{one.graph:.1f}",
            )
            for one in sizes
        ],
    )
    columns = [f"{method}, added, p50 / p95 ms" for method in METHODS]
    yield (
        f"### Searched, {codec}, window {WINDOW}",
        ("documents", "engine alone, ms", *columns, "blend, cold, ms", "nnn by kNN, ms", "its kNN searches"),
        [
            (
                f"{size.documents:,}",
                f"{one.engine:.1f}",
                *(f"{p50:.1f} / {p95:.1f}" for p50, p95 in one.added.values()),
                f"{one.cold:.1f}",
                f"{one.nnn:.0f}",
                f"{one.knn_searches:.0f}",
            )
            for size in sizes
            for one in [size.searched]
        ],
    )


if __name__ == "__main__":
    main()
