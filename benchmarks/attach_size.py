"""How attaching and filling grow with the number of documents. Needs a running engine.

    python -m benchmarks.attach_size --engine http://127.0.0.1:9200 --sizes 1000 10000 40000

Texts are made of 12 to 24 words. The source grows from size to size, and features follow by a fill, as `es-ttc attach`,
`es-ttc fill` and encoding jobs do it. Then a fill that finds nothing to do, and one after 50 documents were changed and
50 deleted. One shard each.
"""

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import orjson

from benchmarks.common import heading, table
from benchmarks.served import ENCODER, bulk, delete, opened
from es_ttc.encoders import Encoder, load_encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import FillResult, attach_beside, detach, fill_attached, traces_of
from es_ttc.index.attach.source import sources_of
from es_ttc.index.mappings.spec import IndexSpec

INDEX = "benchmark-attach-size"
SHORTEST, LONGEST = 12, 24
VOCABULARY = 5000
CHANGED = 50

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Size:
    """What was measured at one size.

    Attributes:
        documents: Number of documents.
        added: The fill of the documents since the size before.
        idle: A fill without any change.
        changes: A fill after some documents were changed and some deleted.
    """

    documents: int
    added: FillResult
    idle: FillResult
    changes: FillResult


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 40_000])
    arguments = parser.parse_args()
    sizes = asyncio.run(_grown(arguments.engine, sorted(arguments.sizes)))
    print(
        heading("Attach by size", data=f"texts of {SHORTEST} to {LONGEST} words", packages=("onnxruntime", "aiohttp"))
    )
    columns = (
        "documents",
        "filled a second",
        "encoder busy",
        "nothing to do, s",
        f"{CHANGED} changed and {CHANGED} deleted, s",
    )
    print(table(columns, [_row(size) for size in sizes]))


def _row(size: Size) -> list[str]:
    added = size.added
    return [
        f"{size.documents:,}",
        f"{added.written / added.seconds:,.0f}",
        f"{added.encoder_seconds / added.seconds:.0%}",
        f"{size.idle.seconds:.2f}",
        f"{size.changes.seconds:.2f}",
    ]


async def _grown(url: str, sizes: Sequence[int]) -> list[Size]:
    encoder = load_encoder(ENCODER)
    spec = IndexSpec(encoder.identity, text_fields=("text",))
    async with opened(url) as engine:
        await _clear(engine)
        await engine.create_index(INDEX, {"mappings": {"properties": {"text": {"type": "text"}}}})
        try:
            [source] = await sources_of(engine, INDEX)
            await attach_beside(engine, source, spec, encoder)
            await _filled(engine, encoder)
            return [await _size(engine, encoder, range(before, size)) for before, size in pairwise([0, *sizes])]
        finally:
            await _clear(engine)


async def _size(engine: Engine, encoder: Encoder, numbers: range) -> Size:
    await _write(engine, numbers, version=0)
    added = await _filled(engine, encoder)
    assert added.written == len(numbers), added
    idle = await _filled(engine, encoder)
    assert not idle.written, idle
    await _write(engine, numbers[:CHANGED], version=1)
    gone = numbers[CHANGED : 2 * CHANGED]
    await bulk(engine, INDEX, [orjson.dumps({"delete": {"_id": str(number)}}) for number in gone])
    await engine.refresh(INDEX)
    changes = await _filled(engine, encoder)
    assert (changes.written, changes.removed) == (CHANGED, CHANGED), changes
    return Size(numbers.stop, added, idle, changes)


async def _write(engine: Engine, numbers: range, version: int) -> None:
    for first in range(numbers.start, numbers.stop, _BATCH):
        await bulk(engine, INDEX, list(_lines(range(first, min(first + _BATCH, numbers.stop)), version)))
    await engine.refresh(INDEX)


def _lines(numbers: range, version: int) -> Iterable[bytes]:
    for number in numbers:
        rng = np.random.default_rng((number, version))
        words = rng.integers(VOCABULARY, size=int(rng.integers(SHORTEST, LONGEST + 1)))
        yield orjson.dumps({"index": {"_id": str(number)}})
        yield orjson.dumps({"text": " ".join(f"word{word}" for word in words)})


async def _filled(engine: Engine, encoder: Encoder) -> FillResult:
    [filled] = await fill_attached(engine, INDEX, encoder)
    return filled


async def _clear(engine: Engine) -> None:
    if await engine.exists(INDEX):
        for traces in await traces_of(engine, INDEX):
            await detach(engine, traces)
        await delete(engine, INDEX)


if __name__ == "__main__":
    main()
