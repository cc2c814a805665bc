"""Bulks against a real engine that is made to be busy, absent or broken."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import pytest
from aiohttp import web

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.index.ingest.bulk import BatchLimits, DocumentAction, RetryPolicy, batches, write
from es_ttc.index.ingest.prepare import prepare
from es_ttc.index.ingest.readers import Record
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.support.servers import server_of

Fault = Literal["busy items", "busy", "unavailable", "hang up", "too large", "forbidden item"]


@dataclass
class FaultyEngine:
    """What the server did.

    Attributes:
        url: Its address.
        faults: What the next bulks meet, in order; none left means they are passed on.
        bulks: The ids of every bulk that came in.
    """

    url: str
    faults: Iterator[Fault]
    bulks: list[list[str]] = field(default_factory=list)


@asynccontextmanager
async def faulty_engine(engine_url: str, faults: Iterator[Fault]) -> AsyncIterator[FaultyEngine]:
    """Run the server on a free port."""
    state = FaultyEngine("", faults)

    async def pass_on(request: web.Request, body: bytes) -> web.Response:
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")
        }
        url = f"{engine_url}{request.path_qs}"
        async with session.request(request.method, url, data=body, headers=headers) as answer:
            content = await answer.read()
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in ("content-length", "transfer-encoding", "content-encoding")
            }
            return web.Response(status=answer.status, body=content, headers=kept)

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not request.path.endswith("/_bulk"):
            return await pass_on(request, body)
        lines = body.splitlines()
        ids = [json.loads(line)["index"]["_id"] for line in lines[::2]]
        state.bulks.append(ids)
        fault = next(state.faults, None)
        match fault:
            case "busy":
                return _error(429, "es_rejected_execution_exception")
            case "unavailable":
                return _error(503, "cluster_block_exception")
            case "too large":
                return _error(413, "too_large")
            case "hang up":
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            case "busy items" | "forbidden item":
                return await _refuse_every_other(request, lines, 429 if fault == "busy items" else 403)
        return await pass_on(request, body)

    async def _refuse_every_other(request: web.Request, lines: list[bytes], status: int) -> web.Response:
        pairs = list(zip(lines[::2], lines[1::2], strict=True))
        passed = [pair for position, pair in enumerate(pairs) if position % 2]
        taken = iter(())
        headers = {}
        if passed:
            answer = await pass_on(request, b"".join(line + b"\n" for pair in passed for line in pair))
            assert isinstance(answer.body, bytes)
            taken = iter(json.loads(answer.body)["items"])
            headers = {name: value for name, value in answer.headers.items() if name.startswith("X-")}
        items: list[dict[str, Any]] = []
        for position, (action, _) in enumerate(pairs):
            if position % 2:
                items.append(next(taken))
            else:
                error = {"type": "es_rejected_execution_exception", "reason": "queue capacity 0"}
                items.append({"index": {"_id": json.loads(action)["index"]["_id"], "status": status, "error": error}})
        return web.json_response({"took": 1, "errors": True, "items": items}, headers=_PRODUCT | headers)

    async with aiohttp.ClientSession(auto_decompress=True) as session, server_of(handle) as state.url:
        yield state


_PRODUCT = {"X-Elastic-Product": "Elasticsearch"}


def _error(status: int, kind: str) -> web.Response:
    cause = {"type": kind, "reason": kind}
    return web.json_response(
        {"error": {"root_cause": [cause], **cause}, "status": status}, status=status, headers=_PRODUCT
    )


SPEC = IndexSpec(EncoderIdentity("m", "r", 4, 16))
QUICK = RetryPolicy(attempts=4, first_wait=0.01, max_wait=0.05)


def action(identifier: str, size: int = 10) -> DocumentAction:
    prepared = prepare(0, Record("", 1, {"_id": identifier, "text": "x" * size}), SPEC, None)
    lines = (b'{"index":{"_id":"%s"}}' % identifier.encode(), prepared.source)
    return DocumentAction(prepared, lines, empty=False, truncated=False)


@asynccontextmanager
async def broken(engine_url: str, faults: Sequence[Fault]) -> AsyncIterator[tuple[Engine, FaultyEngine]]:
    async with (
        faulty_engine(engine_url, iter(faults)) as server,
        connected(EngineSettings(engine=server.url)) as engine,
    ):
        yield engine, server


async def test_only_the_items_that_were_refused_are_sent_again(engine_url: str, index_name: str) -> None:
    actions = [action(str(n)) for n in range(8)]
    async with broken(engine_url, ["busy items", "busy items"]) as (engine, server):
        items = await write(engine, index_name, actions, QUICK)
        await engine.refresh(index_name)
        assert await engine.count(index_name) == 8
    assert [item.status for item in items] == [201] * 8
    assert [item.id for item in items] == [str(n) for n in range(8)]
    assert server.bulks == [[str(n) for n in range(8)], ["0", "2", "4", "6"], ["0", "4"]]


@pytest.mark.parametrize("fault", ["busy", "unavailable", "hang up"])
async def test_a_bulk_that_failed_as_a_whole_is_sent_again(opensearch_url: str, index_name: str, fault: Fault) -> None:
    async with broken(opensearch_url, [fault, fault]) as (engine, server):
        items = await write(engine, index_name, [action("1"), action("2")], QUICK)
    assert [item.status for item in items] == [201, 201]
    assert server.bulks == [["1", "2"]] * 3


async def test_a_cancelled_write_ends_when_the_engine_has_done_it(engine_url: str, index_name: str) -> None:
    """Nothing is written any more when the caller goes on, for example to delete the index."""
    async with broken(engine_url, []) as (engine, server):
        writing = asyncio.create_task(write(engine, index_name, [action(str(n), 1000) for n in range(3000)], QUICK))
        while not server.bulks:  # noqa: ASYNC110 - the server has no event
            await asyncio.sleep(0.001)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await engine.refresh(index_name)
        assert await engine.count(index_name) == 3000


async def test_a_bulk_that_is_too_large_is_halved(opensearch_url: str, index_name: str) -> None:
    async with broken(opensearch_url, ["too large"] * 2) as (engine, server):
        items = await write(engine, index_name, [action(str(n)) for n in range(4)], QUICK)
    assert [item.status for item in items] == [201] * 4
    assert server.bulks == [["0", "1", "2", "3"], ["0", "1"], ["0"], ["1"], ["2", "3"]]


async def test_a_single_document_that_is_too_large_is_refused_alone(opensearch_url: str, index_name: str) -> None:
    async with broken(opensearch_url, ["too large", "too large"]) as (engine, _):
        items = await write(engine, index_name, [action("0"), action("1")], QUICK)
    assert [(item.status, item.ok) for item in items] == [(413, False), (201, True)]


async def test_an_engine_that_stays_busy_ends_the_run(opensearch_url: str, index_name: str) -> None:
    async with broken(opensearch_url, ["busy items"] * 9) as (engine, server):
        with pytest.raises(EngineUnavailable, match=r"1 documents in 4 attempts.*queue capacity"):
            await write(engine, index_name, [action("0"), action("1")], QUICK)
    assert server.bulks == [["0", "1"], ["0"], ["0"], ["0"]]


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
    return [[each.prepared.id for each in batch] async for batch in batches(queue, limits)]


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
    stream = batches(queue, BatchLimits(seconds=0.05))
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
