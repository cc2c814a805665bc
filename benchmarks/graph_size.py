"""How the neighbour graph grows with the number of documents. Needs a running engine.

    python -m benchmarks.graph_size --engine http://127.0.0.1:9200
    python -m benchmarks.graph_size --engine http://127.0.0.1:9200 --sizes 10000 100000 1000000

Documents are made: one vector near that of one of 2,000 topics and the topic's words; they have no token vectors. One
shard, no replica; the index grows from size to size and is merged. At each size the graph is built, compared with each
document's exact nearest, updated after 99 changes, and walked by `rgs` with `dense` as its reranker.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import orjson

from benchmarks.common import heading, table
from benchmarks.corpus_size import MEBIBYTE, Made, made_topics
from benchmarks.neighbour_graph import NEAREST, changed, forget_peak, memory, recall, stored, vectors_of, walk_searches
from benchmarks.served import ENCODER, Client, bulk, gateway, percentiles, temporary_index
from es_ttc.encoders import load_encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.ingest.encode import DocumentFeatures, action_lines
from es_ttc.index.mappings.contents import stored_bytes
from es_ttc.index.mappings.merging import merge_segments
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.reranking.index_graph import build_graph, delete_graphs, update_graph
from es_ttc.reranking.index_graph.build import BuildProgress
from es_ttc.reranking.index_graph.update import GraphUpdate
from es_ttc.vectors.tokens import Float32

INDEX = "benchmark-graph-size"
SPREAD = 0.8
"""Length of a document's own part beside its topic's unit vector."""
CHANGED = 99
QUERIES = 60
WINDOW = 100
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Walk:
    """Searches by one method, in ms.

    Attributes:
        search: Median and 95th percentile of their times.
        graph: The same of the time in which they waited for the graph.
    """

    search: tuple[float, float]
    graph: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Size:
    """What was measured at one size.

    Attributes:
        documents: Number of documents.
        built: The build.
        peak: MiB that it took at most.
        stored: Bytes of the graph.
        recall: Share of the nearest documents that are neighbours, and within two steps.
        updated: The update after :data:`CHANGED` changes.
        walks: Searches that only rerank the window, and that walk.
    """

    documents: int
    built: BuildProgress
    peak: float
    stored: int
    recall: tuple[float, float]
    updated: GraphUpdate
    walks: dict[str, Walk]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    arguments = parser.parse_args()
    made = made_topics()
    sizes = asyncio.run(_grown(arguments.engine, made, sorted(arguments.sizes)))
    data = f"made vectors around {len(made.topics):,} topics"
    print(heading("The neighbour graph by size", data=data, packages=("numpy", "usearch")))
    columns = ("documents", "built by", "s", "of it reading", "MiB at most", "MiB stored", f"recall@{NEAREST}")
    print(table((*columns, "in two steps"), [_build_row(one) for one in sizes]))
    print(table(("documents", "update s", "documents read", "rewired", *_walk_columns()), map(_use_row, sizes)))


async def _grown(url: str, made: Made, sizes: Sequence[int]) -> list[Size]:
    spec = IndexSpec(load_encoder(ENCODER).identity, text_fields=("text",), tokens="none")
    found = []
    async with temporary_index(url, INDEX, spec) as engine:
        for before, size in pairwise([0, *sizes]):
            await _write(engine, made, spec, range(before, size))
            found.append(await _size(engine, url, made, size))
            print(found[-1], file=sys.stderr, flush=True)
    return found


async def _size(engine: Engine, url: str, made: Made, documents: int) -> Size:
    await delete_graphs(engine, INDEX)
    before = memory("VmRSS")
    forget_peak()
    built = await build_graph(engine, INDEX)
    peak = memory("VmHWM") - before
    await engine.request("POST", f"/{built.graph}/_flush")
    size = await stored_bytes(engine, built.graph)
    assert size is not None
    walks = await asyncio.to_thread(_walked, url, made)
    nodes, vectors = await stored(engine, INDEX), await vectors_of(engine, INDEX)
    found = recall(nodes, vectors)
    await changed(engine, INDEX, vectors, CHANGED, np.random.default_rng(0))
    updated = await update_graph(engine, INDEX)
    return Size(documents, built, peak, size, found, updated, walks)


async def _write(engine: Engine, made: Made, spec: IndexSpec, numbers: range) -> None:
    started = time.perf_counter()
    for first in range(numbers.start, numbers.stop, _BATCH):
        await bulk(engine, INDEX, _lines(made, spec, range(first, min(first + _BATCH, numbers.stop))), at_once=_BATCH)
    await engine.refresh(INDEX)
    await merge_segments(engine, INDEX)
    print(f"{len(numbers):,} written and merged in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


def _lines(made: Made, spec: IndexSpec, numbers: range) -> list[bytes]:
    topics, vectors = _documents(made, numbers)
    texts = [f"{made.topics[topic]} document{number}" for topic, number in zip(topics, numbers, strict=True)]
    lines: list[bytes] = []
    for number, text, vector in zip(numbers, texts, vectors, strict=True):
        content = content_hash(*compose({"text": text}, spec.text_fields), spec)
        features = DocumentFeatures(content, vector, None, truncated=False)
        lines += action_lines(str(number), orjson.dumps({"text": text}), "", features, spec)
    return lines


def _documents(made: Made, numbers: range) -> tuple[list[int], Float32]:
    """Return documents' topics, and their vectors ``(n, d)`` as unit rows."""
    rng = np.random.default_rng(numbers.start)
    topics = rng.integers(len(made.topics), size=len(numbers))
    own = rng.standard_normal((len(numbers), made.vectors.shape[1]), dtype=np.float32)
    vectors = made.vectors[topics] + own * (SPREAD / np.linalg.norm(own, axis=1, keepdims=True))
    return topics.tolist(), vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _walked(url: str, made: Made) -> dict[str, Walk]:
    """Search through a gateway of its own: what only reranks the window, and what walks."""
    with gateway(url, default_timeout_ms=60_000) as served, Client(served.url) as client:
        return {method: _searches(client, made, method) for method in ("rr", "rgs")}


def _searches(client: Client, made: Made, method: str) -> Walk:
    queries = {topic: {"match": {"text": topic}} for topic in made.topics[:QUERIES]}
    walks = walk_searches(client, INDEX, queries, method, params={"reranker": "dense", "budget": WINDOW})
    return Walk(percentiles([one.ms for one in walks]), percentiles([one.graph_ms for one in walks]))


def _build_row(one: Size) -> tuple[str, ...]:
    seconds, (neighbours, two_steps) = one.built.seconds, one.recall
    return (
        f"{one.documents:,}",
        one.built.builder,
        f"{seconds['total']:.1f}",
        f"{seconds['reading']:.1f}",
        f"{one.peak:,.0f}",
        f"{one.stored / MEBIBYTE:,.0f}",
        f"{neighbours:.3f}",
        f"{two_steps:.3f}",
    )


def _walk_columns() -> tuple[str, ...]:
    return "`rr`, p50 / p95 ms", "`rgs`", "of it waiting for the graph"


def _use_row(one: Size) -> tuple[str, ...]:
    timed = one.walks["rr"].search, one.walks["rgs"].search, one.walks["rgs"].graph
    return (
        f"{one.documents:,}",
        f"{one.updated.seconds:.1f}",
        f"{one.updated.read:,}",
        f"{one.updated.rewired:,}",
        *(f"{p50:.1f} / {p95:.1f}" for p50, p95 in timed),
    )


if __name__ == "__main__":
    main()
