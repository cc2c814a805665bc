"""Token storage: bytes, index rate, time to read a window, and what other searches pay.

    python -m benchmarks.storage --engine http://127.0.0.1:9200 --engine http://127.0.0.1:9201
    python -m benchmarks.storage --only int8 int2 --engine http://127.0.0.1:9200

Embeddings come from the disk cache, so the rate is the engine's and our own packing's. Bytes a token are those of the
primary shard, less those of the same documents with pooled vectors only: right after the ingest, and merged to one
segment once the engine's retention leases have moved on. A window is read as the gateway reads it with nothing in
memory: request, answer as CBOR, unpacking. The searches are other people's: a match query for ten documents with their
source, and one for a hundred ids, with nothing of ours asked for. `text only` is what is left of an index whose
features stand in a side index.
"""

import argparse
import asyncio
import logging
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.common import heading, table
from es_ttc.encoders import CachedEncoder, Encoder, load_encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Capabilities, Engine
from es_ttc.errors import ConfigurationError
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.index import IndexOptions, index_body
from es_ttc.index.mappings.spec import ENCODER, HASH, ROOT, IndexSpec, SpanGrid
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.rescorers.base import Feature
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.cache import FeatureCache
from es_ttc.serving.features.index_meta import IndexMeta
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.serving.features.read_budget import ReadBudget
from es_ttc.serving.features.reader import FeatureReader
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.logs import configure_logs
from es_ttc.serving.pool import BoundedPool
from es_ttc.settings import EngineSettings, GatewaySettings, Settings
from es_ttc.vectors.codecs import PROFILES

SHARED = Path(__file__).parents[2] / "shared" / "data"
LEASE_SECONDS = 65
QUERIES = 20
TIMEOUT = 600
WINDOW = 100
READ = (Feature.TOKENS, Feature.NORMS)


@dataclass(frozen=True)
class Variant:
    """One way of storing.

    Attributes:
        storage: Fields of the spec.
        settings: Further settings below ``index``.
        features: Whether the index carries anything of ours.
        recovery: Whether the engine keeps the whole document once more, to bring replicas up to date.
        share: Part of the documents that is written: 1 unless that takes too long.
    """

    storage: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    features: bool = True
    recovery: bool = True
    share: float = 1.0


VARIANTS = {
    "text only": Variant(features=False),
    "pooled vectors only": Variant({"tokens": "none"}),
    "int8": Variant({"codec": "int8"}),
    "float16": Variant({"codec": "float16"}),
    "int4": Variant({"codec": "int4"}),
    "int2": Variant({"codec": "int2"}),
    "small": Variant(dict(PROFILES["small"]._asdict())),
    "int4, no recovery source": Variant({"codec": "int4"}, recovery=False),
    "text only, best_compression": Variant(features=False, settings={"codec": "best_compression"}),
    "int8, best_compression": Variant({"codec": "int8"}, {"codec": "best_compression"}),
    "int8 and spans 10/5": Variant({"codec": "int8", "spans": (SpanGrid(10, 5),)}),
    "nested": Variant({"tokens": "nested"}, share=0.2),
    "rank_vectors": Variant({"tokens": "rank_vectors"}, share=0.2),
}
BARE = "pooled vectors only"


@dataclass
class Measured:
    """What was found of one variant.

    Attributes:
        documents: Written.
        tokens: Their token vectors.
        rate: Documents a second.
        at_once: Bytes right after the ingest.
        merged: Bytes of one segment, later.
        window: Milliseconds to read a window, p50 and p95; empty where there is nothing to read.
        ten: Milliseconds of a search for ten documents with their source, p50.
        ids: Milliseconds of a search for a hundred ids, p50.
    """

    documents: int
    tokens: int
    rate: float
    at_once: int = 0
    merged: int = 0
    window: tuple[float, ...] = ()
    ten: float = 0.0
    ids: float = 0.0


class Bench:
    """One engine and one collection.

    Args:
        engine: The engine.
        url: Its address.
        encoder: With the disk cache.
        collection: Documents and queries.
    """

    def __init__(self, engine: Engine, url: str, encoder: Encoder, collection: Collection) -> None:
        self.engine = engine
        self.url = url
        self.encoder = encoder
        self.collection = collection
        self.documents = [{"_id": each.id, **each.source} for each in collection.documents]
        self.lengths = [len(rows) for start in range(0, len(self.documents), 32) for rows in self._tokens(start)]
        self.queries = list(collection.queries.values())[:QUERIES]

    def _tokens(self, start: int) -> list[Any]:
        texts = [f"{each.get('title', '')} {each['text']}".strip() for each in self.documents[start : start + 32]]
        return self.encoder.encode(texts).tokens

    async def measure(self, variants: dict[str, Variant]) -> dict[str, Measured]:
        """Write all variants, let the leases move on, merge, and read; delete what was written."""
        capabilities = await self.engine.capabilities()
        found: dict[str, Measured] = {}
        names = {name: f"bench-storage-{number}" for number, name in enumerate(variants)}
        try:
            for name, variant in variants.items():
                begun = time.perf_counter()
                try:
                    found[name] = await self._write(names[name], variant, capabilities)
                except ConfigurationError as error:
                    print(f"- {name}: {error}")
                print(f"{name}: {time.perf_counter() - begun:.1f} s", file=sys.stderr)
            await asyncio.sleep(LEASE_SECONDS)
            for name, measured in found.items():
                index = names[name]
                forced = {"max_num_segments": "1"}
                await self.engine.request("POST", f"/{index}/_forcemerge", params=forced, timeout=600)
                await self.engine.refresh(index)
                measured.merged = await self._bytes(index)
            async with Upstream(GatewaySettings(engine=self.url, request_timeout=TIMEOUT)) as upstream:
                for name, measured in found.items():
                    await self._read(names[name], variants[name], measured, EngineClient(upstream))
        finally:
            for index in names.values():
                if await self.engine.exists(index):
                    await self.engine.delete_index(index)
        return found

    async def _write(self, index: str, variant: Variant, capabilities: Capabilities) -> Measured:
        documents = self.documents[: int(len(self.documents) * variant.share)]
        if await self.engine.exists(index):
            await self.engine.delete_index(index)
        spec = IndexSpec(self.encoder.identity, **variant.storage)
        body = index_body(spec, capabilities, IndexOptions(shards=1, replicas=0))
        body["settings"]["index"] |= variant.settings
        if not variant.features:
            body["mappings"] = {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}}
        if not variant.recovery:
            if capabilities.product != "opensearch":
                raise ConfigurationError("this engine always keeps the recovery source")
            body["mappings"]["_source"]["recovery_source_excludes"] = [ROOT]
        await self.engine.create_index(index, body)
        begun = time.perf_counter()
        if variant.features:
            inputs = Inputs([Documents(documents)])
            await ingest(self.engine, index, inputs, self.encoder, dead_letters=DeadLetterList())
        else:
            await self._write_text(index, documents)
        measured = Measured(
            len(documents), sum(self.lengths[: len(documents)]), len(documents) / (time.perf_counter() - begun)
        )
        await self.engine.request("POST", f"/{index}/_flush")
        measured.at_once = await self._bytes(index)
        return measured

    async def _write_text(self, index: str, documents: Sequence[dict[str, Any]]) -> None:
        lines = []
        for document in documents:
            lines.append(orjson.dumps({"index": {"_id": document["_id"]}}))
            lines.append(orjson.dumps({name: value for name, value in document.items() if name != "_id"}))
        assert all(item.ok for item in await self.engine.bulk(index, lines))
        await self.engine.refresh(index)

    async def _bytes(self, index: str) -> int:
        sizes = await self.engine.request("GET", f"/{index}/_stats/store")
        return int(sizes["_all"]["primaries"]["store"]["size_in_bytes"])

    async def _read(self, index: str, variant: Variant, measured: Measured, engine: EngineClient) -> None:
        matches = [{"query": {"multi_match": {"query": text, "fields": ["title", "text"]}}} for text in self.queries]
        measured.ten = statistics.median(await self._searches(index, matches, {"size": 10}))
        measured.ids = statistics.median(await self._searches(index, matches, {"size": WINDOW, "_source": False}))
        if variant.storage.get("tokens") == "none" or not variant.features:
            return
        windows = matches[: 4 if variant.share < 1 else len(matches)]
        pool = BoundedPool("features", threads=2, queue=8)
        budget, meta = ReadBudget(engine, None), IndexMeta(engine)
        cache = FeatureCache(1)  # it keeps nothing
        reader = FeatureReader(engine, cache, pool, budget, meta)
        times = []
        try:
            for query in (windows[0], *windows):
                keys = await self._keys(index, query)
                begun = time.perf_counter()
                found = await reader.window(keys, READ, Caller([]))
                times.append((time.perf_counter() - begun) * 1000)
                assert all(len(each) == len(READ) for each in found.documents)
        finally:
            pool.close()
        measured.window = tuple(np.percentile(times[1:], [50, 95]).tolist())

    async def _searches(self, index: str, matches: Sequence[dict[str, Any]], how: dict[str, Any]) -> list[float]:
        times = []
        for query in (*matches[:5], *matches):
            begun = time.perf_counter()
            await self.engine.search(index, {**query, **how})
            times.append((time.perf_counter() - begun) * 1000)
        return times[5:]

    async def _keys(self, index: str, query: dict[str, Any]) -> list[DocumentKey]:
        asked = {**query, "size": WINDOW, "_source": False, "docvalue_fields": [HASH, ENCODER]}
        hits = (await self.engine.search(index, asked))["hits"]["hits"]
        return [DocumentKey(hit["_index"], hit["fields"][ENCODER][0], hit["fields"][HASH][0]) for hit in hits]


def first_documents(collection: Collection, count: int) -> Collection:
    """Return a collection of the first documents, and of the queries that they answer."""
    documents = collection.documents[:count]
    ids = {each.id for each in documents}
    qrels = {
        query: {one: grade for one, grade in judged.items() if one in ids} for query, judged in collection.qrels.items()
    }
    qrels = {query: judged for query, judged in qrels.items() if any(grade > 0 for grade in judged.values())}
    queries = {query: text for query, text in collection.queries.items() if query in qrels}
    return replace(collection, documents=documents, queries=queries, qrels=qrels)


async def run(url: str, encoder: Encoder, collection: Collection, chosen: Sequence[str]) -> str:
    engine = await connect(EngineSettings(engine=url, request_timeout=TIMEOUT))
    try:
        found = await Bench(engine, url, encoder, collection).measure({name: VARIANTS[name] for name in chosen})
        capabilities = await engine.capabilities()
    finally:
        await engine.close()
    bare = found[BARE]
    rows = []
    for name, each in found.items():
        carries = each.tokens if VARIANTS[name].features and name != BARE else 0
        share = each.documents / bare.documents
        rows.append(
            [
                name,
                f"{each.rate:.0f}",
                f"{(each.at_once - bare.at_once * share) / carries:,.0f}" if carries else "-",
                f"{(each.merged - bare.merged * share) / carries:,.0f}" if carries else "-",
                " / ".join(f"{value:,.0f}" for value in each.window) or "-",
                f"{each.ten:.1f}",
                f"{each.ids:.1f}",
            ]
        )
    title = f"### {capabilities.product} {'.'.join(map(str, capabilities.version))}, {collection.name}"
    columns = ["storage", "docs/s", "bytes a token at once", "merged later", "window, p50 / p95 ms"]
    return f"{title}\n\n{table([*columns, 'ten documents, ms', 'a hundred ids, ms'], rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", default=[], help="an engine's URL; may be given several times")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--data", type=Path, nargs="+", default=[SHARED / "scifact", SHARED / "limit-small"])
    parser.add_argument("--documents", type=int, default=1000, help="of each collection, at most")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, help="these, and the one to compare with")
    arguments = parser.parse_args()
    configure_logs(logging.WARNING)
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder(arguments.encoder, cache_dir=cache), cache / "encodings")
    collections = [first_documents(load_collection(folder), arguments.documents) for folder in arguments.data]
    data = ", ".join(f"{each.name} ({len(each.documents)} documents)" for each in collections)
    print(heading("Token storage", data=data, packages=("numpy", "elasticsearch", "opensearch-py")))
    chosen = [BARE, *(name for name in arguments.only or VARIANTS if name != BARE)]
    for collection in collections:
        for url in arguments.engine:
            print(asyncio.run(run(url, encoder, collection, chosen)), flush=True)


if __name__ == "__main__":
    main()
