"""Under load: who goes down the ladder, how far, in which order callers are served, and what a response says of it."""

import asyncio
import threading
from base64 import b64encode
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from es_ttc.serving.load import CallerLoad, Expected, Load, Rung, rungs_down
from es_ttc.serving.pool import BoundedPool, work_for
from tests.conftest import PRODUCTS
from tests.serving.client import call, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS, EVERYTHING

ON_ONE_ENGINE = True
AT_ONCE = 60
REDUCED = ["lexical", "dense"]


@pytest.mark.parametrize(
    ("expected", "rungs"),
    [
        (Expected(0.45, 0.2), 0),
        (Expected(0.85, 0.2), 1),
        (Expected(1.6, 0.2), 2),  # before a search is not scored at all, all go down to the cheapest scores
        (Expected(9.0, 0.2), 3),
        (Expected(0.3, 0.4), 1),
        (Expected(0.85, 0.7), 2),
        (Expected(0.85, 1.2), 3),
    ],
)
def test_searches_go_down_by_the_share_of_their_time_that_scoring_takes(expected: Expected, rungs: float) -> None:
    assert rungs_down(expected, seconds=1) == pytest.approx(rungs)
    assert rungs_down(expected, seconds=0) == 3


def busy(load: CallerLoad, searches: int) -> None:
    for _ in range(searches):
        load.begin(Rung.FULL)


def test_between_two_rungs_searches_take_both() -> None:
    load = Load()
    taken = Counter(load.rung(Expected(whole=0.73, ahead=0.1), seconds=1) for _ in range(100))
    assert taken == {Rung.FULL: pytest.approx(30, abs=1), Rung.NO_TOKENS: pytest.approx(70, abs=1)}
    assert load.rung(Expected(0.0, 0.0), seconds=1) is Rung.FULL


def test_a_caller_beyond_its_share_goes_down_first() -> None:
    load = Load()
    with load.of(b"many") as many, load.of(b"few") as few:
        busy(many, 4)
        load.answered(100.0, engine=2.0)
        assert many.rung(0.001) == (Rung.FULL, 0.0), "so few wait for other programs, not for each other"
        busy(many, 35)
        busy(few, 1)
        for _ in range(100):
            load.answered(7.0, engine=4.0)  # of which two seconds are no wait for other searches
        rungs, seconds = zip(many.rung(1), few.rung(1), strict=True)
        assert rungs == (Rung.FIRST_PASS, Rung.FULL)
        assert seconds == pytest.approx((5, 0.25), rel=0.01)
    assert load.expected(b"many") == (0, 0)
    with load.of(b"few") as few:
        busy(few, 10)
        assert few.rung(1)[1] == pytest.approx(1.25, rel=0.01), "what a unit of work takes is remembered"


async def test_callers_take_turns_at_threads() -> None:
    pool = BoundedPool("testing", threads=1, queue=20)
    gate = threading.Event()
    order: list[bytes] = []
    tasks: list[asyncio.Task[object]] = [asyncio.create_task(pool.run(gate.wait, 10))]
    await asyncio.sleep(0)
    for caller in [b"many"] * 4 + [b"few"] * 2:
        with work_for(caller):
            tasks.append(asyncio.create_task(pool.run(order.append, caller)))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert order == [b"many", b"few", b"many", b"few", b"many", b"many"]
    pool.close()


def body(**section: Any) -> dict[str, Any]:
    ttc = {**({} if "query_texts" in section else {"query_text": CATS}), **section}
    return {"query": EVERYTHING, "size": 5, "_source": False, "rescore": {"window_size": 50, "ttc": ttc}}


@pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)
def test_many_searches_at_once_give_up_what_costs_most(stack: SearchStack) -> None:
    def summaries(**section: Any) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(AT_ONCE) as clients:
            replies = [*clients.map(lambda _: search(stack.gateway, stack.index, body(**section)), range(AT_ONCE))]
        assert {reply.status for reply in replies} == {200}
        return [reply.json()["ttc"] for reply in replies]

    assert summaries()[0]["applied"]
    rungs: Counter[str] = Counter()
    milliseconds = 8000  # halved until a machine of any speed has gone down all rungs
    while len(rungs) < 3 and (milliseconds := milliseconds // 2) > 5:
        for told in summaries(timeout=f"{milliseconds}ms", query_texts=[CATS, "an owl sings"], parts="each"):
            load = told.get("load")
            if load is None:
                continue
            rungs[load["rung"]] += 1
            assert load["expected_ms"] > 0.1 * milliseconds
            if load["rung"] == "first_pass":
                assert not told["applied"]
                assert "so many searches" in told["reason"]
            elif told["applied"]:
                assert told["signals"] == REDUCED
                assert [part["part"] for part in told["parts"]] == [0, 1]
                assert "missing_signals" not in told
                assert ("candidates" in told) == (load["rung"] == "no_tokens")
    assert len(rungs) == 3, rungs
    metrics = call(stack.gateway, "GET", "/_ttc/metrics").body.decode()
    assert 'es_ttc_load_rungs_total{rung="no_tokens"}' in metrics
    for section in ({"signals": {"lexical": 1, "spectral": 1}}, {"candidates": {"knn": 20}}):
        asked = {"params": section} if "signals" in section else section
        for told in summaries(timeout="300ms", **asked):
            assert told.get("load", {}).get("rung", "first_pass") == "first_pass", told


@pytest.mark.parametrize("engine_url", PRODUCTS[:1], indirect=True)
def test_a_caller_with_few_searches_gets_whole_ones_beside_a_flood(stack: SearchStack) -> None:
    def searched(name: str) -> dict[str, Any]:
        credentials = {"authorization": f"Basic {b64encode(name.encode()).decode()}"}
        reply = call(stack.gateway, "POST", f"/{stack.index}/_search", body(timeout="1s"), credentials)
        told: dict[str, Any] = reply.json()["ttc"]
        return told

    with ThreadPoolExecutor(AT_ONCE) as clients:
        flood = [clients.submit(searched, "many:") for _ in range(5 * AT_ONCE)]
        few = [searched("few:") for _ in range(5)]
        many = [one.result() for one in flood]
    assert any("load" in told for told in many)
    assert not any("load" in told for told in few), few
