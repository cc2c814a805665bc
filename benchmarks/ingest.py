"""Ingest: documents a second beside the encoder alone, and bytes on disk a token, for both storage types.

The encoder alone is timed on the same texts in the same run, before and after, because its rate moves with the
machine's load. Bytes a token are those of the primary shard, less those of an index of the same documents with text
and pooled vector only: right after the ingest, and merged to one segment later. Until the engine's retention leases
have moved on (every 30 s) and a merge follows, it keeps the whole document once more, to bring replicas up to date.
While that time passes, a third of the documents is ingested once and then ten times over, and memory is watched.
"""

import argparse
import asyncio
import statistics
import threading
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import psutil

from benchmarks.common import heading, table
from es_ttc.encoders import Encoder, load_encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest import DeadLetterList, Documents, IngestResult, Inputs, ingest
from es_ttc.index.ingest.compose import compose
from es_ttc.index.ingest.encode import action_lines, encode_texts, features_of
from es_ttc.index.ingest.prepare import prepare
from es_ttc.index.ingest.readers import Record, open_source
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.spec import IndexSpec, TokenStorage
from es_ttc.lab.demo.stdlib import generate
from es_ttc.settings import EngineSettings
from es_ttc.vectors.codecs import StoredCodec

LEASE_SECONDS = 65
STORAGE: Sequence[tuple[TokenStorage, StoredCodec]] = (("none", "int8"), ("packed", "int8"), ("packed", "float16"))
MIB = 2**20


@dataclass(frozen=True)
class Ingested:
    """One ingest.

    Attributes:
        index: Where it wrote.
        spec: What the index carries.
        outcome: Its counts and times.
        alone: Documents a second of the encoder alone, around it.
    """

    index: str
    spec: IndexSpec
    outcome: IngestResult
    alone: float


async def fill(
    engine: Engine, encoder: Encoder, documents: Iterable[Any], name: str, tokens: TokenStorage, codec: StoredCodec
) -> tuple[IndexSpec, IngestResult]:
    """Ingest into a new index."""
    spec = IndexSpec(encoder.identity, tokens=tokens, codec=codec)
    if await engine.exists(name):
        await engine.delete_index(name)
    await create_index(engine, name, spec)
    outcome = await ingest(engine, name, Inputs([Documents(documents)]), encoder, dead_letters=DeadLetterList())
    await engine.request("POST", f"/{name}/_flush")
    return spec, outcome


async def size(engine: Engine, filled: Ingested) -> int:
    """Return the bytes of an index's primary shards."""
    found = (await contents(engine, filled.index, filled.spec)).bytes
    assert found is not None
    return found


async def merge(engine: Engine, filled: Ingested) -> None:
    await engine.request("POST", f"/{filled.index}/_forcemerge", params={"max_num_segments": "1"}, timeout=300)
    await engine.refresh(filled.index)


class PeakMemory:
    """Watches this process's memory while the body runs; ``peak`` is then its greatest size in bytes."""

    def __enter__(self) -> Self:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._done.wait(0.02):
            self.peak = max(self.peak, process.memory_info().rss)


async def memory_rows(engine: Engine, encoder: Encoder, documents: Sequence[Any]) -> list[list[str]]:
    """Ingest the documents once, and ten times over, and say how large this process grew."""
    rows = []
    for times in (1, 10):
        repeated = ({**document, "_id": f"{n}-{k}"} for n in range(times) for k, document in enumerate(documents))
        name = f"bench-ingest-memory-{times}"
        try:
            with PeakMemory() as memory:
                _, outcome = await fill(engine, encoder, repeated, name, "packed", "int8")
        finally:
            await engine.delete_index(name)
        product = (await engine.capabilities()).product
        count, rate = f"{times * len(documents):,}", f"{outcome.documents_per_second:.1f}"
        rows.append([product, count, rate, f"{memory.peak / MIB:,.0f}"])
    return rows


def encoder_rate(encoder: Encoder, texts: Sequence[str]) -> float:
    """Return documents a second of the encoder alone, given the texts sorted by length, in parts."""
    ordered = sorted(texts, key=len)
    begun = time.perf_counter()
    for start in range(0, len(ordered), 32):
        encoder.encode(ordered[start : start + 32])
    return len(texts) / (time.perf_counter() - begun)


def packing_ms(encoder: Encoder, documents: Sequence[Any], spec: IndexSpec) -> float:
    """Return the CPU time in ms that quantising, norms and JSON of one document take; whatever else runs."""
    seconds = 0.0
    for document in documents:
        prepared = prepare(0, Record("", 1, document), spec, None)
        encoded = encode_texts([(prepared.text, prepared.spans)], spec, encoder)
        begun = time.thread_time()
        [features] = features_of(encoded, [prepared.spans], [prepared.hash], spec)
        action_lines(prepared.id, prepared.source, prepared.digest, features, spec)
        seconds += time.thread_time() - begun
    return 1000 * seconds / len(documents)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Engine]:
    engine = await connect(EngineSettings(engine=url, request_timeout=300))
    try:
        yield engine
    finally:
        await engine.close()


async def run(url: str, encoder: Encoder, documents: Sequence[Any]) -> tuple[str, list[list[str]], list[list[str]]]:
    """Return what was read, the rows of the rates, and the rows of the memory."""
    texts = [compose(document, ("title", "text"))[0] for document in documents]
    tokens = sum(
        len(each) for start in range(0, len(texts), 32) for each in encoder.encode(texts[start : start + 32]).tokens
    )
    filled: list[Ingested] = []
    async with connected(url) as engine:
        try:
            before = encoder_rate(encoder, texts)
            for storage, codec in STORAGE:
                name = f"bench-ingest-{storage}-{codec}"
                spec, outcome = await fill(engine, encoder, documents, name, storage, codec)
                after = encoder_rate(encoder, texts)
                filled.append(Ingested(name, spec, outcome, statistics.mean((before, after))))
                before = after
            ended = time.monotonic()
            at_once = [await size(engine, each) for each in filled]
            memory = await memory_rows(engine, encoder, documents[: max(1, len(documents) // 3)])
            await asyncio.sleep(max(0.0, ended + LEASE_SECONDS - time.monotonic()))
            for each in filled:
                await merge(engine, each)
            merged = [await size(engine, each) for each in filled]
        finally:
            for each in filled:
                await engine.delete_index(each.index)
        product = (await engine.capabilities()).product
    rows = []
    for each, now, later in zip(filled, at_once, merged, strict=True):
        packed = each.spec.tokens == "packed"
        rate = each.outcome.documents_per_second
        rows.append(
            [
                product,
                each.spec.codec if packed else "pooled vectors only",
                f"{each.alone:.1f}",
                f"{rate:.1f}",
                f"{rate / each.alone:.0%}",
                f"{each.outcome.encoder_busy:.0%}",
                f"{packing_ms(encoder, documents, each.spec):.1f}",
                f"{(now - at_once[0]) / tokens:.0f}" if packed else "-",
                f"{(later - merged[0]) / tokens:.0f}" if packed else "-",
            ]
        )
    return f"{len(documents)} documents, {tokens / len(documents):.0f} tokens each", rows, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", help="documents, as es-ttc ingest takes them; else Python's own library")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--encoder", default="minilm@onnx")
    parser.add_argument("--engine", action="append", required=True, help="the engine's URL; may be given twice")
    arguments = parser.parse_args()
    encoder = load_encoder(arguments.encoder)
    encoder.encode(["warm up"])
    source = open_source(arguments.file) if arguments.file else Documents(each.source for each in generate().documents)
    records = Inputs([source]).peek(arguments.documents)
    documents = [record.document for record in records if record.document]
    results = [asyncio.run(run(url, encoder, documents)) for url in arguments.engine]
    print(heading("Ingest", data=results[0][0], packages=("onnxruntime", "elasticsearch", "opensearch-py")))
    columns = [
        "engine",
        "tokens",
        "encoder alone, docs/s",
        "ingest, docs/s",
        "share",
        "encoder busy",
        "packing, CPU ms/doc",
    ]
    columns += ["bytes a token at once", "merged later"]
    print(table(columns, [row for _, rows, _ in results for row in rows]))
    columns = ["engine", "documents of the input", "docs/s", "this process at its peak, MiB"]
    print(table(columns, [row for _, _, rows in results for row in rows]))


if __name__ == "__main__":
    main()
