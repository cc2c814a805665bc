"""Bytes of features in flight: bounded, and granted to searches in turn."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.base import Feature
from es_ttc.serving.features.keys import dims_of
from es_ttc.serving.features.read_budget import MIB, DocumentSizes, ReadQueue, in_flight_of, smallest_heap, unknown_size

KIND = ("books", (Feature.TOKENS,))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 120), st.booleans()), max_size=40), st.integers(10, 100))
def test_no_more_is_in_flight_than_may_be_and_everyone_has_a_turn(
    asked: list[tuple[int, int, bool]], capacity: int
) -> None:
    async def run() -> None:
        turns = ReadQueue(capacity)
        reading: list[int] = []
        read: list[int] = []

        async def one(number: int, search: int, nbytes: int) -> None:
            await turns.take(search, nbytes, nbytes)
            reading.append(nbytes)
            try:
                assert sum(reading) <= capacity or len(reading) == 1
                await asyncio.sleep(0)
                read.append(number)
            finally:
                reading.remove(nbytes)
                turns.give_back(nbytes)

        tasks = [asyncio.create_task(one(number, *some[:2])) for number, some in enumerate(asked)]
        await asyncio.sleep(0)
        for task, (*_, leaves) in zip(tasks, asked, strict=True):
            if leaves:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = {number for number, task in enumerate(tasks) if task.cancelled()}
        assert left <= {number for number, (*_, leaves) in enumerate(asked) if leaves}
        assert sorted(read) == sorted(set(range(len(asked))) - left)
        assert turns.waiting == 0

    asyncio.run(run())


async def test_a_small_search_waits_for_no_great_ones_and_none_waits_for_ever() -> None:
    turns = ReadQueue(10)
    order: list[str] = []

    async def read(name: str, search: int, parts: int) -> None:
        for left in range(parts, 0, -1):
            await turns.take(search, left * 10, 10)
            order.append(name)
            await asyncio.sleep(0)
            turns.give_back(10)

    great = [read(f"great {number}", turns.search(), 8) for number in range(4)]
    small = read("small", turns.search(), 1)
    await asyncio.gather(*great, small)
    assert order.index("small") < 4
    last = {name: len(order) - order[::-1].index(name) for name in set(order)}
    assert last["great 0"] < last["great 3"] == len(order)
    assert last["great 0"] <= 2 * 8 + 1


async def test_cancelled_reader_gives_up_its_place_and_its_grant() -> None:
    turns = ReadQueue(10)
    await turns.take(0, 10, 10)
    waiting = [asyncio.create_task(turns.take(number, 10, 10)) for number in (1, 2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert turns.waiting == 1
    turns.give_back(10)
    waiting[1].cancel()  # granted, and not yet told
    with pytest.raises(asyncio.CancelledError):
        await waiting[1]
    assert (turns.in_flight, turns.waiting) == (0, 0)


def test_sizes_are_learned_upwards_at_once_and_downwards_slowly() -> None:
    sizes = DocumentSizes()
    assert sizes.of(KIND, 7.0) == 7.0
    sizes.learn(KIND, 1000, 10)
    assert sizes.of(KIND, 7.0) == 100
    sizes.learn(KIND, 4000, 10)
    assert sizes.of(KIND, 7.0) == 400
    sizes.learn(KIND, 0, 0)
    sizes.learn(KIND, 100, 1)
    assert 300 < sizes.of(KIND, 7.0) < 400
    for _ in range(100):
        sizes.learn(KIND, 100, 1)
    assert sizes.of(KIND, 7.0) == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    ("key", "pooled", "tokens"),
    [
        ("all-MiniLM-L6-v2@0123456789ab/384x256", 384, 384),
        ("a/b@c/768x512+p+law@0123456789ab", 768, 768),
        ("all-MiniLM-L6-v2@0123456789ab/384x256|colbert@0123456789ab/96x512+late-0123", 384, 96),
        ("b", None, None),
        ("", None, None),
    ],
)
def test_an_unknown_document_is_taken_for_a_long_one(key: str, pooled: int | None, tokens: int | None) -> None:
    assert dims_of(key) == (pooled, tokens)
    assert unknown_size(key, [Feature.TOKENS], as_text=False) >= 1024 * (tokens or 1)
    assert unknown_size(key, [Feature.TOKENS], as_text=True) > unknown_size(key, [Feature.TOKENS], as_text=False)


def test_the_bound_follows_the_smallest_heap() -> None:
    def stats(*heaps: object) -> bytes:
        nodes = (f'"{number}":{{"jvm":{{"mem":{{"heap_max_in_bytes":{heap}}}}}}}' for number, heap in enumerate(heaps))
        return f'{{"nodes":{{{",".join(nodes)}}}}}'.encode()

    assert smallest_heap(stats(2 * 2**30, 2**30)) == 2**30
    assert smallest_heap(stats(0)) is None
    for odd in (b"", b"{}", b"[]", b'{"nodes":[]}', b'{"nodes":{"a":{}}}', stats('"x"'), stats("null")):
        assert smallest_heap(odd) is None
    assert in_flight_of(2**30) == 64 * MIB
    assert in_flight_of(1) == 4 * MIB
    assert in_flight_of(2**40) == 512 * MIB
