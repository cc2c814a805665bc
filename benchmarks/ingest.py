"""Ingest: documents a second beside the encoder alone, and bytes on disk a token, for both storage types.

The encoder alone is timed on the same texts in the same run, before and after, because its rate moves with the
machine's load. Bytes a token are those of the primary shard, less those of an index of the same documents with text
and pooled vector only: right after the ingest, and merged to one segment later. Until the engine's retention leases
have moved on (every 30 s) and a merge follows, it keeps the whole document once more, to bring replicas up to date.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.common import heading, table
from es_ttc.demo.stdlib import generate
from es_ttc.encoders import Encoder, load_encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.ingest import DeadLetterList, Documents, Inputs, Outcome, ingest
from es_ttc.ingest.compose import compose
from es_ttc.ingest.readers import open_source
from es_ttc.mappings.contents import contents
from es_ttc.mappings.index import create_index
from es_ttc.mappings.spec import Codec, IndexSpec, TokenStorage
from es_ttc.settings import EngineSettings

LEASE_SECONDS = 65


@dataclass(frozen=True)
class Measured:
    """One ingest.

    Attributes:
        outcome: Its counts and times.
        bytes: Primary shards on disk, right after it.
        merged: The same, merged after the retention leases have moved on.
    """

    outcome: Outcome
    bytes: int
    merged: int


async def measure(
    engine: Engine, encoder: Encoder, documents: Sequence[Any], tokens: TokenStorage, codec: Codec
) -> Measured:
    name = f"bench-ingest-{tokens}-{codec}"
    spec = IndexSpec(encoder.identity, tokens=tokens, codec=codec)
    if await engine.exists(name):
        await engine.delete_index(name)
    await create_index(engine, name, spec)
    try:
        inputs = Inputs([Documents(documents)])
        outcome = await ingest(engine, name, inputs, encoder, dead_letters=DeadLetterList())
        await engine.request("POST", f"/{name}/_flush")
        at_once = (await contents(engine, name, spec)).bytes
        await asyncio.sleep(LEASE_SECONDS)
        await engine.request("POST", f"/{name}/_forcemerge", params={"max_num_segments": "1"}, timeout=300)
        await engine.refresh(name)
        return Measured(outcome, at_once, (await contents(engine, name, spec)).bytes)
    finally:
        await engine.delete_index(name)


def encoder_rate(encoder: Encoder, texts: Sequence[str]) -> float:
    """Return documents a second of the encoder alone, given the texts sorted by length, in parts."""
    ordered = sorted(texts, key=len)
    begun = time.perf_counter()
    for start in range(0, len(ordered), 32):
        encoder.encode(ordered[start : start + 32])
    return len(texts) / (time.perf_counter() - begun)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Engine]:
    engine = await connect(EngineSettings(engine=url, request_timeout=300))
    try:
        yield engine
    finally:
        await engine.close()


async def run(url: str, encoder: Encoder, documents: Sequence[Any]) -> tuple[str, list[list[str]]]:
    texts = [compose(document, ("title", "text"))[0] for document in documents]
    tokens = sum(
        len(each) for start in range(0, len(texts), 32) for each in encoder.encode(texts[start : start + 32]).tokens
    )
    variants: list[tuple[TokenStorage, Codec]] = [("none", "int8"), ("packed", "int8"), ("packed", "float16")]
    rows = []
    async with connected(url) as engine:
        capabilities = await engine.capabilities()
        bare: Measured | None = None
        for storage, codec in variants:
            before = encoder_rate(encoder, texts)
            found = await measure(engine, encoder, documents, storage, codec)
            alone = statistics.mean((before, encoder_rate(encoder, texts)))
            bare = bare or found
            rate = found.outcome.documents_per_second
            rows.append(
                [
                    capabilities.product,
                    codec if storage == "packed" else "pooled vectors only",
                    f"{alone:.1f}",
                    f"{rate:.1f}",
                    f"{rate / alone:.0%}",
                    f"{found.outcome.encoder_busy:.0%}",
                    f"{(found.bytes - bare.bytes) / tokens:.0f}" if storage == "packed" else "-",
                    f"{(found.merged - bare.merged) / tokens:.0f}" if storage == "packed" else "-",
                ]
            )
    return f"{len(documents)} documents, {tokens / len(documents):.0f} tokens each", rows


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
    columns = ["engine", "tokens", "encoder alone, docs/s", "ingest, docs/s", "share", "encoder busy"]
    columns += ["bytes a token at once", "merged later"]
    print(table(columns, [row for _, rows in results for row in rows]))


if __name__ == "__main__":
    main()
