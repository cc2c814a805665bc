"""Token vectors as nested vector fields against packed blobs: bytes a document, ingest rate, time added to a search.

    python -m benchmarks.nested_tokens --engine http://127.0.0.1:9200 --engine http://127.0.0.1:9201

It is `benchmarks.storage` with the variants that answer one question, over a few hundred documents, all of them
written in every variant. Embeddings come from the disk cache. Bytes are those of the whole primary shard a document:
right after the ingest, and merged to one segment once the engine's retention leases have moved on. The added time is
that of reading a window of 100 documents with nothing in the gateway's memory; for a window in memory nothing is read.
The searches are other people's: a match query for ten documents with their source, and one for a hundred ids.
"""

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common import heading, table
from benchmarks.storage import BARE, SHARED, TIMEOUT, VARIANTS, Bench, Variant, first_documents
from es_ttc.encoders import CachedEncoder, Encoder, load_encoder
from es_ttc.engine.connect import connect
from es_ttc.index.mappings.spec import SpanGrid
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.settings import EngineSettings, Settings

SPANS = (SpanGrid(10, 5),)
COMPARED = {
    **{name: VARIANTS[name] for name in (BARE, "int8", "float16", "int8 and spans 10/5")},
    "nested": Variant({"tokens": "nested"}),
    "nested and spans 10/5": Variant({"tokens": "nested", "spans": SPANS}),
    "nested, in `_source`, as earlier releases": Variant({"tokens": "nested", "outside_source": False}),
}
COLUMNS = [
    "storage", "bytes a document at once", "merged later", "docs/s", "added to a search, p50 / p95 ms",
    "ten documents, ms", "a hundred ids, ms",
]  # fmt: skip


async def run(url: str, encoder: Encoder, collection: Collection, chosen: Mapping[str, Variant]) -> str:
    """Measure one engine and return its table."""
    engine = await connect(EngineSettings(engine=url, request_timeout=TIMEOUT))
    try:
        found = await Bench(engine, url, encoder, collection).measure(dict(chosen))
        capabilities = await engine.capabilities()
    finally:
        await engine.close()
    rows = [
        [
            name,
            f"{each.at_once / each.documents:,.0f}",
            f"{each.merged / each.documents:,.0f}",
            f"{each.rate:.0f}",
            " / ".join(f"{value:,.0f}" for value in each.window) or "-",
            f"{each.ten:.1f}",
            f"{each.ids:.1f}",
        ]
        for name, each in found.items()
    ]
    tokens = found[BARE].tokens / found[BARE].documents
    title = f"### {capabilities.product} {'.'.join(map(str, capabilities.version))}, {collection.name}"
    return f"{title}, {tokens:.0f} tokens a document\n\n{table(COLUMNS, rows)}"


def main() -> None:
    """Print a table for each engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", default=[], required=True, help="may be given several times")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--data", type=Path, default=SHARED / "scifact")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=COMPARED, help="these, and the one without token vectors")
    arguments = parser.parse_args()
    names = arguments.only or list(COMPARED)
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder(arguments.encoder, cache_dir=cache), cache / "encodings")
    collection = first_documents(load_collection(arguments.data), arguments.documents)
    data = f"{collection.name} (the first {len(collection.documents)} documents, {len(collection.queries)} queries)"
    print(heading("Nested token vectors", data=data, packages=("numpy", "elasticsearch", "opensearch-py")))
    chosen = {name: variant for name, variant in COMPARED.items() if name == BARE or name in names}
    for url in arguments.engine:
        print(asyncio.run(run(url, encoder, collection, chosen)), flush=True)


if __name__ == "__main__":
    main()
