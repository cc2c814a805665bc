"""The neighbour graph in an engine: building, mending, reading it, and what 100,000 vectors cost.

    python -m benchmarks.neighbour_graph --engine URL [--collection npl-vaswani] [--part mending ...]
    python -m benchmarks.neighbour_graph --part made-up

The collection is indexed with token vectors (its encodings come from the cache where they were made before), its graph
built by each builder, a growing share of it changed and mended, and searches walk through it. The 100,000 vectors are
made up: points around 2,000 centres, 384 components, in memory; their time is that of building in this process.
"""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import orjson

from benchmarks.common import heading, table
from benchmarks.served import WINDOW, Client
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.queries import matching
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.through_engine import index_collection
from es_ttc.reranking.graph import GraphParams, build
from es_ttc.reranking.graph.nearest import approximate, exact
from es_ttc.reranking.index_graph import build_graph, delete_graphs, serving_graph, update_graph
from es_ttc.reranking.index_graph.build import Builder
from es_ttc.reranking.index_graph.store import GraphNode, pages
from es_ttc.serving.server import running_gateway
from es_ttc.settings import EngineSettings, GatewaySettings, Settings
from es_ttc.vectors.tokens import Float32

DATA = Path(__file__).parents[2] / "shared" / "data"
SHARES = (0.0003, 0.0025, 0.01)
PARTS = ("builders", "walking", "mending", "made-up")
MADE_UP = 100_000
NEAREST = 10


@click.command()
@click.option("--engine", "url", default="", metavar="URL", help="The engine; of no use for the made-up vectors.")
@click.option("--collection", default="npl-vaswani", show_default=True, help="Which folder of data.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Some parts; all where left out.")
@click.option("--queries", default=60, show_default=True, help="Searches that walk.")
def main(url: str, collection: str, queries: int, parts: tuple[str, ...]) -> None:
    """Print the tables."""
    parts = parts or PARTS
    if parts == ("made-up",):
        print(heading("A graph of many vectors", data=f"{MADE_UP:,} made-up vectors", packages=("numpy", "usearch")))
        made_up()
        return
    found = load_collection(DATA / collection)
    cache = Settings().cache_dir
    encoder: Encoder = CachedEncoder(load_encoder("minilm", cache_dir=cache), cache / "encodings")
    print(
        heading(
            "The neighbour graph in an engine",
            data=f"{found.name} ({len(found.documents):,} documents), all-MiniLM-L6-v2; {MADE_UP:,} made-up vectors",
            packages=("numpy", "usearch"),
        )
    )
    asyncio.run(measured(url, found, encoder, queries, parts))
    if "made-up" in parts:
        made_up()


async def measured(url: str, collection: Collection, encoder: Encoder, queries: int, parts: Sequence[str]) -> None:
    """Measure what an engine is needed for."""
    engine = await connect(EngineSettings(engine=url))
    name = f"bench-graph-{uuid.uuid4().hex[:8]}"
    fields = ("title", "text") if collection.documents[0].title else ("text",)
    spec = IndexSpec(encoder.identity, text_fields=fields, tokens="packed" if "walking" in parts else "none")
    try:
        product = await engine.capabilities()
        await index_collection(engine, name, collection, spec, encoder)
        print(f"engine: {product.product} {'.'.join(map(str, product.version))}\n")
        if "builders" in parts:
            await builders(engine, name)
        else:
            await build_graph(engine, name)
        if "walking" in parts:
            await asyncio.to_thread(walking, url, name, collection, encoder, queries)
        if "mending" in parts:
            await mending(engine, name)
    finally:
        await delete_graphs(engine, name)
        await engine.delete_index(name)
        await engine.close()


async def builders(engine: Engine, name: str) -> None:
    """Build the graph by each builder; the one by vectors is left."""
    rows = []
    choices: tuple[Builder, ...] = ("engine", "vectors")
    for builder in choices:
        built = await build_graph(engine, name, builder=builder)
        nodes = await stored(engine, name)
        vectors = await vectors_of(engine, name)
        sizes = await engine.request("GET", f"/{built.graph}/_stats/store")
        rows.append(
            (
                built.builder,
                f"{built.seconds['total']:.1f}",
                f"{built.seconds['reading']:.1f}",
                f"{sizes['_all']['primaries']['store']['size_in_bytes'] / 2**20:.1f}",
                *(f"{value:.3f}" for value in recall(nodes, vectors)),
            )
        )
    print(table(("builder", "seconds", "of it reading", "MiB", f"recall@{NEAREST}", "in two steps"), rows))


async def mending(engine: Engine, name: str) -> None:
    """Change a share of the documents (a third each new, changed and deleted) and mend; then build anew."""
    generator = np.random.default_rng(0)
    rows = []
    for share in SHARES:
        before = await vectors_of(engine, name)
        await changed(engine, name, before, round(share * len(before)), generator)
        mended = await update_graph(engine, name)
        nodes, vectors = await stored(engine, name), await vectors_of(engine, name)
        own = recall(nodes, vectors)
        began = time.perf_counter()
        whole = build(np.stack([vectors[one] for one in nodes]), GraphParams())
        seconds = time.perf_counter() - began
        ids = list(nodes)
        anew = {
            one: GraphNode(one, "", tuple(ids[other] for other in whole.of(at).tolist())) for at, one in enumerate(ids)
        }
        rebuilt = recall(anew, vectors)
        rows.append(
            (
                f"{share:.2%}", mended.written + mended.deleted, f"{mended.seconds:.1f}", mended.read, mended.rewired,
                f"{own[0]:.3f}", f"{rebuilt[0]:.3f}", f"{own[1]:.3f}", f"{rebuilt[1]:.3f}", f"{seconds:.1f}",
            )
        )  # fmt: skip
    columns = (
        "changed", "documents", "seconds", "read", "rewired", f"recall@{NEAREST} mended", "anew", "two steps, mended",
        "anew", "seconds in memory anew",
    )  # fmt: skip
    print(table(columns, rows))


async def changed(
    engine: Engine, name: str, vectors: Mapping[str, Float32], count: int, generator: np.random.Generator
) -> None:
    """Write new documents, turn the vectors of others a little, and delete some; a third each."""
    part = max(1, count // 3)
    ids = [*vectors]
    drawn = [ids[at] for at in generator.choice(len(ids), 3 * part, replace=False)]
    lines: list[bytes] = []
    for place, one in enumerate(drawn[: 2 * part]):
        turned = vectors[one] + 0.015 * generator.standard_normal(vectors[one].shape)
        vector = (turned / np.linalg.norm(turned)).astype(np.float32)
        target = f"new-{uuid.uuid4().hex[:8]}" if place < part else one
        lines += [orjson.dumps({"index": {"_id": target}}), orjson.dumps({"text": "made", "ttc": fields(vector, name)})]
    lines += [orjson.dumps({"delete": {"_id": one}}) for one in drawn[2 * part :]]
    items = await engine.bulk(name, lines)
    assert all(item.ok for item in items), items[:1]
    await engine.refresh(name)


def fields(vector: Float32, name: str) -> dict[str, Any]:
    """Return what ingest would write of a document with this vector."""
    import base64

    from es_ttc.vectors.packed import pack_tokens
    from es_ttc.vectors.tokens import TokenVectors

    blob = base64.b64encode(pack_tokens(TokenVectors(vector[np.newaxis]))).decode()
    return {
        "hash": uuid.uuid4().hex, "encoder": name, "state": "ready", "vector": vector.tolist(), "pooled": blob,
    }  # fmt: skip


async def stored(engine: Engine, name: str) -> dict[str, GraphNode]:
    """Return the graph."""
    serving = await serving_graph(engine, name)
    assert serving is not None
    await engine.refresh(serving[0])
    return {node.id: node async for page in pages(engine, serving[0]) for node in page}


async def vectors_of(engine: Engine, name: str) -> dict[str, Float32]:
    """Return the documents' vectors."""
    from es_ttc.index.attach.source import settled_writes
    from es_ttc.reranking.index_graph.vectors import VectorSource

    corpus = await VectorSource.of(engine, name)
    settled = await settled_writes(engine, corpus.index)
    return {one.id: one.vector async for page in corpus.read({}, settled) for one in page if one.vector is not None}


def recall(nodes: dict[str, GraphNode], vectors: dict[str, Float32]) -> tuple[float, float]:
    """Return the share of each document's nearest that are neighbours, and that are neighbours or theirs."""
    ids = [one for one in vectors if one in nodes]
    matrix = np.stack([vectors[one] for one in ids])
    sample = np.random.default_rng(1).choice(len(ids), min(2000, len(ids)), replace=False).astype(np.int32)
    nearest, _ = exact(matrix, NEAREST, rows=sample)
    one_step, two_steps = [], []
    for at, row in zip(sample.tolist(), nearest.tolist(), strict=True):
        wanted = {ids[other] for other in row}
        direct = set(nodes[ids[at]].neighbours)
        wider = direct | {one for other in direct if other in nodes for one in nodes[other].neighbours}
        one_step.append(len(wanted & direct) / NEAREST)
        two_steps.append(len(wanted & wider) / NEAREST)
    return float(np.mean(one_step)), float(np.mean(two_steps))


class WalkSearch(NamedTuple):
    """One search by a method that may walk.

    Attributes:
        ms: Its time.
        graph_ms: Time in which it waited for the graph.
        outside: Documents from outside the window that were reranked.
    """

    ms: float
    graph_ms: float
    outside: int


def walk_searches(
    client: Client, index: str, queries: Mapping[str, Mapping[str, Any]], method: str, **section: Any
) -> list[WalkSearch]:
    """Search with a window of :data:`WINDOW` and all features in memory.

    Args:
        client: A client of the gateway.
        index: The index.
        queries: The engine's query for each text.
        method: The method.
        section: What else the request's section says.
    """
    found: list[WalkSearch] = []
    for _ in range(2):  # the first time reads the features
        found = []
        for text, clause in queries.items():
            ttc = {"method": method, "query_text": text, **section}
            body = orjson.dumps({"query": clause, "_source": False, "rescore": {"window_size": WINDOW, "ttc": ttc}})
            began = time.perf_counter()
            answer = client.search(body, index)["ttc"]
            ms = (time.perf_counter() - began) * 1000
            assert answer["applied"], answer
            found.append(WalkSearch(ms, answer["took"].get("graph", 0.0), answer["walk"].get("outside", 0)))
    return found


def walking(url: str, name: str, collection: Collection, encoder: Encoder, queries: int) -> None:
    """Measure what reading the graph adds to a search: 100 documents, judged by spectral, warm."""
    settings = GatewaySettings(engine=url, port=0, default_timeout_ms=60_000)
    texts = list(collection.queries.values())[:queries]
    clauses = {text: matching(text, ("text",)) for text in texts}
    rows = []
    with (
        running_gateway(settings, load=lambda _name, _folder: encoder) as gateway,
        Client(gateway) as client,
    ):
        for method in ("rr", "rgs", "gar", "slidegar"):
            walks = walk_searches(client, name, clauses, method, timeout="60s")
            whole, graph, outside = (np.array(column) for column in zip(*walks, strict=True))
            rows.append(
                (
                    method, *(f"{np.percentile(whole, p):.0f}" for p in (50, 95)),
                    *(f"{np.percentile(graph, p):.1f}" for p in (50, 95)), f"{outside.mean():.0f}",
                )
            )  # fmt: skip
    columns = ("method", "search p50 ms", "p95", "waited for the graph p50 ms", "p95", "from outside the window")
    print(table(columns, rows))


def memory(kind: str) -> float:
    """Return this process's memory in MiB, as Linux counts it: `VmRSS` now, `VmHWM` at its peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{kind}:"))


def forget_peak() -> None:
    """Count the peak of this process's memory from here on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def made_up() -> None:
    """Build the graph of many made-up vectors in this process."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((2000, 384)).astype(np.float32)
    vectors = centres[generator.integers(0, 2000, MADE_UP)]
    vectors += generator.standard_normal(vectors.shape).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    before = memory("VmRSS")
    forget_peak()
    began = time.perf_counter()
    graph = build(vectors)
    seconds = time.perf_counter() - began
    peak = memory("VmHWM")
    sample = generator.choice(MADE_UP, 1000, replace=False).astype(np.int32)
    nearest, _ = exact(vectors, NEAREST, rows=sample)
    near, _ = approximate(vectors[:20_000], NEAREST)
    wanted, _ = exact(vectors[:20_000], NEAREST)
    found = np.mean([len(set(a) & set(b)) / NEAREST for a, b in zip(near.tolist(), wanted.tolist(), strict=True)])
    two = []
    for at, row in zip(sample.tolist(), nearest.tolist(), strict=True):
        wider = set(graph.of(at).tolist())
        wider |= {one for other in graph.of(at) for one in graph.of(int(other)).tolist()}
        two.append(len(wider & set(row)) / NEAREST)
    columns = (
        "vectors", "MiB of them", "seconds", "MiB of the process before", "at its peak while building",
        "recall in two steps", "hnsw",
    )  # fmt: skip
    row_ = (
        f"{MADE_UP:,}", f"{vectors.nbytes / 2**20:.0f}", f"{seconds:.0f}", f"{before:.0f}", f"{peak:.0f}",
        f"{np.mean(two):.3f}", f"{found:.3f}",
    )  # fmt: skip
    print(table(columns, [row_]))


if __name__ == "__main__":
    main()
