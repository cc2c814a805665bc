"""Threads are shared by kinds of requests: a flood of one kind leaves the others their turns."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from es_ttc.common.long_steps import long_step
from es_ttc.encoders.base import Encoder
from es_ttc.errors import TooManyRequests
from es_ttc.serving.pool import BoundedPool, slices, work_of
from tests.serving.client import Reply, call, search
from tests.serving.conftest import make_index
from tests.serving.corpus import EVERYTHING
from tests.support.gateway import gateway_to

LONG = " ".join(f"The owl number {number} sings before rain." for number in range(150))
FLOOD = 12
TEXTS = 16


@pytest.fixture(scope="module")
def pool() -> Iterator[BoundedPool]:
    made = BoundedPool("testing", threads=2, queue=3)
    yield made
    made.close()


async def test_only_searches_have_all_threads(pool: BoundedPool) -> None:
    gate = threading.Event()
    with work_of("rerank"):
        flood = [asyncio.create_task(pool.run(gate.wait, 10)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests, match="3 calls wait for testing"):
            await pool.run(gate.wait, 10)
    with work_of("encode"):
        flood.append(asyncio.create_task(pool.run(gate.wait, 10)))
    await asyncio.sleep(0)
    assert not pool.searches_wait
    for kind in ("search", "score"):
        with work_of(kind):
            assert await asyncio.wait_for(pool.run(lambda: 1), 10) == 1
    gate.set()
    assert await asyncio.gather(*flood) == [True] * 5


async def test_kinds_take_turns() -> None:
    pool = BoundedPool("testing", threads=1, queue=8)
    gate = threading.Event()
    order: list[str] = []
    tasks: list[asyncio.Task[object]] = [asyncio.create_task(pool.run(gate.wait, 10))]
    await asyncio.sleep(0)
    for kind in ["rerank"] * 4 + ["search"] * 2 + ["encode"]:
        with work_of(kind):
            tasks.append(asyncio.create_task(pool.run(order.append, kind)))
    await asyncio.sleep(0)
    waits = [pool.searches_wait]
    gate.set()
    await asyncio.gather(*tasks)
    assert [*waits, pool.searches_wait] == [True, False]
    assert order == ["rerank", "search", "encode", "rerank", "search", "rerank", "rerank"]
    pool.close()


async def test_a_call_that_nobody_waits_for_any_more_is_not_begun(pool: BoundedPool) -> None:
    gate = threading.Event()
    begun: list[int] = []
    running = [asyncio.create_task(pool.run(gate.wait, 10)) for _ in range(2)]
    waiting = asyncio.create_task(pool.run(begun.append, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*running)
    assert await pool.run(lambda: 2) == 2
    assert begun == []


async def test_pool_stop_iteration_becomes_a_runtime_error(pool: BoundedPool) -> None:
    def stops() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(pool.run(stops), 10)


async def test_long_steps_leave_the_event_loop_to_others_between_them() -> None:
    steps, most, done = [0], 0, 0

    async def works() -> None:
        nonlocal done
        await long_step()
        steps[-1] += 1
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            pass
        done += 1

    tasks = [asyncio.create_task(works()) for _ in range(20)]
    await asyncio.sleep(0)
    tasks[10].cancel()  # it waits: the next one is not held up
    while done < 19:
        steps.append(0)
        await asyncio.sleep(0)
        most = max(most, steps[-1])
    assert most <= 2
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.wait_for(long_step(), 1)


def test_slices_hold_everything_once_and_no_more_than_they_may() -> None:
    sizes = [1, 5, 5, 1, 1, 9, 30, 1]
    found = list(slices(sizes, most=3, weight=10))
    assert [sizes[some] for some in found] == [[1, 5], [5, 1, 1], [9], [30], [1]]
    assert list(slices([], most=3, weight=10)) == []


def test_searches_are_rescored_while_texts_are_reranked_by_the_hundred(
    opensearch_url: str, index_name: str, encoder: Encoder
) -> None:
    make_index(opensearch_url, index_name, encoder)

    def flood(url: str, number: int) -> Reply:
        texts = [f"{number} {text} {LONG}" for text in range(TEXTS)]
        return call(url, "POST", "/_ttc/rerank", {"query": "owls", "documents": texts})

    def asked(url: str, number: int) -> Reply:
        section = {"method": "spectral", "query_text": f"new words, number {number}", "timeout": "4s"}
        return search(url, index_name, {"query": EVERYTHING, "rescore": {"window_size": 60, "ttc": section}})

    with gateway_to(opensearch_url, encoder, rerank_timeout_ms=5_000) as url, ThreadPoolExecutor(FLOOD) as clients:
        assert asked(url, -1).json()["ttc"]["applied"]
        flooding = [clients.submit(flood, url, number) for number in range(FLOOD)]
        answers = [asked(url, number).json()["ttc"] for number in range(3)]
        assert not all(one.done() for one in flooding)
        reranked = [one.result().status for one in flooding]
    assert all(answer["applied"] for answer in answers), answers
    assert set(reranked) <= {200, 503}
