"""Ingest with several processes that encode: documents a second, beside as many encoders alone. Needs a running engine.

    python -m benchmarks.ingest_processes corpus.jsonl --engine http://127.0.0.1:9200

`encoders alone` is the sum of what the same number of processes encode at the same time, without an engine and without
packing; each has its share of the cores. The time of loading an encoder is part of an ingest, and not of the encoders
alone. One process is the ingest without `--processes`. Times alternate: alone, ingest, alone.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.common import heading, table
from benchmarks.ingest import connected, encoder_rate
from es_ttc.encoders import load_encoder
from es_ttc.index.ingest import DeadLetterList, Documents, IngestOptions, IngestResult, Inputs, ingest
from es_ttc.index.ingest.compose import compose
from es_ttc.index.ingest.encode_parts import EncodeProcesses
from es_ttc.index.ingest.readers import open_source
from es_ttc.index.mappings.encoder import load_encoder_for
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.spec import IndexSpec

INDEX = "benchmark-ingest-processes"
_SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="documents, as es-ttc ingest takes them")
    parser.add_argument("--documents", type=int, default=600)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--encoder", default="minilm@onnx")
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    arguments = parser.parse_args()
    records = Inputs([open_source(arguments.file)]).peek(arguments.documents)
    documents = [record.document for record in records if record.document]
    texts = [compose(document, ("title", "text"))[0] for document in documents]
    rows = []
    for number in arguments.processes:
        before = alone(arguments.encoder, texts, number)
        outcome = asyncio.run(ingested(arguments.engine, arguments.encoder, documents, number))
        rate = statistics.mean((before, alone(arguments.encoder, texts, number)))
        share = outcome.documents_per_second / rate
        rows.append(
            [
                str(number),
                f"{rate:.1f}",
                f"{outcome.documents_per_second:.1f}",
                f"{share:.0%}",
                f"{outcome.encoder_busy:.0%}",
            ]
        )
    print(heading("Ingest by processes", data=f"{len(documents)} documents", packages=("onnxruntime",)))
    columns = ["processes", "encoders alone, docs/s", "ingest, docs/s", "share", "encoders busy"]
    print(table(columns, rows))


def alone(name: str, texts: Sequence[str], number: int) -> float:
    """Return documents a second of a number of encoders at the same time, each in a process."""
    pairs = [_SPAWN.Pipe() for _ in range(number)]
    workers = [_SPAWN.Process(target=_encode, args=(name, texts, number, there)) for _, there in pairs]
    for worker in workers:
        worker.start()
    for here, _ in pairs:
        here.recv()  # it has loaded its encoder
    for here, _ in pairs:
        here.send(None)
    rate: float = sum(here.recv() for here, _ in pairs)
    for worker in workers:
        worker.join()
    return rate


def _encode(name: str, texts: Sequence[str], number: int, parent: Connection) -> None:
    encoder = load_encoder(name, threads=max(1, (os.cpu_count() or 1) // number))
    encoder.encode(["warm up"])
    parent.send(None)
    parent.recv()
    parent.send(encoder_rate(encoder, texts))


async def ingested(url: str, name: str, documents: Sequence[Any], number: int) -> IngestResult:
    """Ingest documents into a new index, which is deleted afterwards."""
    encoder = load_encoder(name)
    spec = IndexSpec(encoder.identity)
    processes = EncodeProcesses(number, partial(load_encoder_for, spec.encoder, name)) if number > 1 else None
    async with connected(url) as engine:
        if await engine.exists(INDEX):
            await engine.delete_index(INDEX)
        await create_index(engine, INDEX, spec)
        try:
            return await ingest(
                engine,
                INDEX,
                Inputs([Documents(documents)]),
                encoder,
                dead_letters=DeadLetterList(),
                options=IngestOptions(processes=processes),
            )
        finally:
            await engine.delete_index(INDEX)


if __name__ == "__main__":
    main()
