"""What the benchmarks of a cluster share: a collection in an index with a graph, and the searches that are compared."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.served import ENCODER
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import build_graph
from es_ttc.settings import EngineSettings, Settings

DATA = Path(__file__).parents[2] / "shared" / "data"
FIELDS = ("title", "text")
TIMEOUT = "60s"
"""Scoring budget: what is late for want of processors says nothing about a cluster."""
DFS = "search_type=dfs_query_then_fetch"

Body = dict[str, Any]


def cached_encoder() -> Encoder:
    """Return the encoder, whose encodings are kept on disk."""
    cache = Settings().cache_dir
    return CachedEncoder(load_encoder(ENCODER, cache_dir=cache), cache / "encodings")


def collection(folder: Path, documents: int | None) -> Collection:
    """Return a collection, or its first documents with all its queries."""
    loaded = load_collection(folder, split="test")
    return replace(loaded, documents=loaded.documents[:documents])


async def indexed(url: str, index: str, documents: Collection, encoder: Encoder, *, shards: int, replicas: int) -> None:
    """Write a collection with all features into a new index, and build its neighbour graph."""
    engine = await connect(EngineSettings(engine=url, request_timeout=120))
    try:
        spec = IndexSpec(encoder.identity, text_fields=FIELDS, codec="int8")
        await create_index(engine, index, spec, IndexOptions(shards=shards, replicas=replicas))
        letters = DeadLetterList()
        lines = [{"_id": one.id, **one.source} for one in documents.documents]
        await ingest(engine, index, Inputs([Documents(lines)]), encoder, dead_letters=letters)
        assert not letters.letters, letters.letters[:3]
        await engine.refresh(index)
        await build_graph(engine, index, GraphParams())
    finally:
        await engine.close()


def _match(text: str) -> Body:
    return {"query": {"multi_match": {"query": text, "fields": [*FIELDS]}}, "size": 10, "_source": False}


def _rescored(method: str, **more: Any) -> Callable[[str], Body]:
    section = {"method": method, "timeout": TIMEOUT, **more}
    return lambda text: {**_match(text), "rescore": {"window_size": 100, "ttc": {**section, "query_text": text}}}


def _retrieved(method: str, **params: Any) -> Callable[[str], Body]:
    section = {"method": method, "timeout": TIMEOUT, "params": params}
    clause = {"field": "ttc.vector", "k": 10, "ttc": section}
    return lambda text: {"knn": {**clause, "query_text": text}, "size": 10, "_source": False}


def _rewritten(method: str, **params: Any) -> Callable[[str], Body]:
    section = {"method": method, "timeout": TIMEOUT, "params": {"text_fields": [*FIELDS], **params}}
    return lambda text: {"query": {"ttc": {**section, "query_text": text}}, "size": 10, "_source": False}


WITHOUT_US = "bm25"
SEARCHES: Mapping[str, Callable[[str], Body]] = {
    WITHOUT_US: _match,
    "dense": _rescored("dense"),
    "spectral": _rescored("spectral"),
    "nnn": _rescored("nnn"),
    "hybrid": _rescored("hybrid"),
    "blend": _rescored("blend"),
    "rr": _rescored("rr", params={"budget": 50}),
    "gar": _rescored("gar", params={"budget": 50}),
    "rgs": _rescored("rgs", params={"budget": 50}),
    "knn:dense": _retrieved("dense"),
    "knn:dense, exact": _retrieved("dense", exact=True),
    "knn:nnn": _retrieved("nnn"),
    "knn:nnn, exact": _retrieved("nnn", exact=True),
    "knn:softcentroid": _retrieved("softcentroid"),
    "rm3": _rewritten("rm3", weight=0.5),
    "sira": _rewritten("sira", weight=0.5, tau=1.0),
}
"""Each kind of search by its name: from a query's text to a body. The first one is the engine's own."""


_VOCABULARY = (
    "boundary layer", "laminar", "hypersonic", "shock wave", "flutter", "buckling", "heat transfer", "supersonic flow",
    "skin friction", "blunt body", "reynolds number", "nozzle", "wind tunnel", "delta wing", "thin shell",
)  # fmt: skip


def proposals(question: Mapping[str, Any]) -> str:
    """Return what the scripted model proposes for a search: five phrases that depend on nothing but its text."""
    asked = question["prompt"].rpartition("Search: ")[2]
    return "; ".join(Random(asked).sample(_VOCABULARY, 5))
