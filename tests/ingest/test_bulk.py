"""Bulks against a real engine that is made to be busy, absent or broken."""

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.index.ingest.bulk import BatchLimits, DocumentAction, RetryPolicy, bulk_batches, write
from es_ttc.index.ingest.prepare import prepare
from es_ttc.index.ingest.readers import Record
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.serving.client import Reply, call
from tests.serving.relay import Passed, relay

Fault = Literal["busy items", "busy", "unavailable", "hang up", "too large", "forbidden item"]
ERRORS = {
    "busy": (429, "es_rejected_execution_exception"),
    "unavailable": (503, "cluster_block_exception"),
    "too large": (413, "too_large"),
}
SPEC = IndexSpec(EncoderIdentity("m", "r", 4, 16))
QUICK = RetryPolicy(attempts=4, first_wait=0.01, max_wait=0.05)


def action(identifier: str, size: int = 10) -> DocumentAction:
    prepared = prepare(0, Record("", 1, {"_id": identifier, "text": "x" * size}), SPEC, None)
    lines = (b'{"index":{"_id":"%s"}}' % identifier.encode(), prepared.source)
    return DocumentAction(prepared, lines, empty=False, truncated=False)


@asynccontextmanager
async def broken(engine_url: str, faults: Sequence[Fault]) -> AsyncIterator[tuple[Engine, list[list[str]]]]:
    """Give a client whose bulks meet faults, one after the other, and the ids of every bulk that came in."""
    bulks: list[list[str]] = []
    left = iter(faults)

    def meet(request: Passed) -> Reply | None:
        if not request.target.partition("?")[0].endswith("/_bulk"):
            return None
        packed = request.headers.get("content-encoding") == "gzip"
        lines = (gzip.decompress(request.body) if packed else request.body).splitlines()
        bulks.append([json.loads(line)["index"]["_id"] for line in lines[::2]])
        match next(left, None):
            case None:
                return None
            case "hang up":
                raise ConnectionError
            case "busy items":
                return every_other_refused(lines, 429, engine_url + request.target)
            case "forbidden item":
                return every_other_refused(lines, 403, engine_url + request.target)
            case fault:
                status, kind = ERRORS[fault]
                cause = {"type": kind, "reason": kind}
                return as_reply(status, {"error": {"root_cause": [cause], **cause}, "status": status})

    with relay(engine_url) as server:
        server.before = meet
        async with connected(EngineSettings(engine=server.url)) as engine:
            yield engine, bulks


def every_other_refused(lines: list[bytes], status: int, url: str) -> Reply:
    """Pass on every other document, and answer as if the engine had refused the others."""
    error = {"type": "es_rejected_execution_exception", "reason": "queue capacity 0"}
    items = [
        {"index": {"_id": json.loads(one)["index"]["_id"], "status": status, "error": error}} for one in lines[::2]
    ]
    if passed := [line for place, line in enumerate(lines) if place // 2 % 2]:
        parts = urlsplit(url)
        body = b"".join(line + b"\n" for line in passed)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        taken = call(url, "POST", target, body, {"content-type": "application/x-ndjson"})
        items[1::2] = taken.json()["items"]
    return as_reply(200, {"took": 1, "errors": True, "items": items})


def as_reply(status: int, body: Any) -> Reply:
    headers = {"content-type": "application/json", "x-elastic-product": "Elasticsearch"}
    return Reply(status, headers, json.dumps(body).encode())


async def test_only_the_items_that_were_refused_are_sent_again(engine_url: str, index_name: str) -> None:
    actions = [action(str(n)) for n in range(8)]
    async with broken(engine_url, ["busy items", "busy items"]) as (engine, bulks):
        items = await write(engine, index_name, actions, QUICK)
        await engine.refresh(index_name)
        assert await engine.count(index_name) == 8
    assert [item.status for item in items] == [201] * 8
    assert [item.id for item in items] == [str(n) for n in range(8)]
    assert bulks == [[str(n) for n in range(8)], ["0", "2", "4", "6"], ["0", "4"]]


@pytest.mark.parametrize("fault", ["busy", "unavailable", "hang up"])
async def test_a_bulk_that_failed_as_a_whole_is_sent_again(opensearch_url: str, index_name: str, fault: Fault) -> None:
    async with broken(opensearch_url, [fault, fault]) as (engine, bulks):
        items = await write(engine, index_name, [action("1"), action("2")], QUICK)
    assert [item.status for item in items] == [201, 201]
    assert bulks == [["1", "2"]] * 3


async def test_a_cancelled_write_ends_when_the_engine_has_done_it(engine_url: str, index_name: str) -> None:
    """Nothing is written any more when the caller goes on, for example to delete the index."""
    async with broken(engine_url, []) as (engine, bulks):
        writing = asyncio.create_task(write(engine, index_name, [action(str(n), 1000) for n in range(3000)], QUICK))
        while not bulks:  # noqa: ASYNC110 - the server has no event
            await asyncio.sleep(0.001)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await engine.refresh(index_name)
        assert await engine.count(index_name) == 3000


async def test_a_bulk_that_is_too_large_is_halved(opensearch_url: str, index_name: str) -> None:
    async with broken(opensearch_url, ["too large"] * 2) as (engine, bulks):
        items = await write(engine, index_name, [action(str(n)) for n in range(4)], QUICK)
    assert [item.status for item in items] == [201] * 4
    assert bulks == [["0", "1", "2", "3"], ["0", "1"], ["0"], ["1"], ["2", "3"]]


async def test_a_single_document_that_is_too_large_is_refused_alone(opensearch_url: str, index_name: str) -> None:
    async with broken(opensearch_url, ["too large", "too large"]) as (engine, _):
        items = await write(engine, index_name, [action("0"), action("1")], QUICK)
    assert [(item.status, item.ok) for item in items] == [(413, False), (201, True)]


async def test_an_engine_that_stays_busy_ends_the_run(opensearch_url: str, index_name: str) -> None:
    async with broken(opensearch_url, ["busy items"] * 9) as (engine, bulks):
        with pytest.raises(EngineUnavailable, match=r"1 documents in 4 attempts.*queue capacity"):
            await write(engine, index_name, [action("0"), action("1")], QUICK)
    assert bulks == [["0", "1"], ["0"], ["0"], ["0"]]


async def test_an_engine_that_forbids_writing_ends_the_run(opensearch_url: str, index_name: str) -> None:
    async with broken(opensearch_url, ["forbidden item"]) as (engine, _):
        with pytest.raises(EngineError, match=f"refuses to write to \\[{index_name}\\]") as caught:
            await write(engine, index_name, [action("0"), action("1")], QUICK)
    assert not isinstance(caught.value, EngineUnavailable)


async def cut(chunks: Sequence[Sequence[DocumentAction]], limits: BatchLimits) -> list[list[str]]:
    queue: asyncio.Queue[Sequence[DocumentAction] | None] = asyncio.Queue()
    for chunk in chunks:
        queue.put_nowait(chunk)
    queue.put_nowait(None)
    return [[each.prepared.id for each in batch] async for batch in bulk_batches(queue, limits)]


async def test_batches_are_bounded_in_bytes_and_documents_and_hold_no_id_twice() -> None:
    rng = random.Random(7)
    actions = [action(str(rng.randrange(40)), rng.randrange(1, 400)) for _ in range(200)]
    chunks = [actions[start : start + 30] for start in range(0, 200, 30)]
    limits = BatchLimits(bytes=1000, actions=7)
    found = await cut(chunks, limits)
    assert [identifier for batch in found for identifier in batch] == [each.prepared.id for each in actions]
    rest = iter(actions)
    for batch in found:
        assert len(batch) == len(set(batch)) <= 7
        assert sum(next(rest).nbytes for _ in batch) <= 1000 or len(batch) == 1


async def test_a_batch_does_not_wait_longer_than_it_may() -> None:
    queue: asyncio.Queue[Sequence[DocumentAction] | None] = asyncio.Queue()
    queue.put_nowait([action("1")])
    stream = bulk_batches(queue, BatchLimits(seconds=0.05))
    assert [each.prepared.id for each in await anext(stream)] == ["1"]
    queue.put_nowait([action("2")])
    queue.put_nowait(None)
    assert [each.prepared.id for each in await anext(stream)] == ["2"]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


def test_waits_grow_and_are_bounded() -> None:
    patience = RetryPolicy(attempts=10, first_wait=1, max_wait=5)
    for attempt, share in [(1, 1), (2, 2), (3, 4), (4, 5), (9, 5)]:
        assert share / 2 <= patience.wait(attempt) <= share
