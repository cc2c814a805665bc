"""How soon searches are complete in an index that is attached on demand. Needs a running engine.

    python -m benchmarks.on_demand --engine http://127.0.0.1:9200 [--documents 100000] [--queries 5000]

Documents and queries are generated. A document has words of one topic, and common ones; a query has two or three words
of a topic, and popular topics have more queries. How often a query is sent follows Zipf's law. One client sends one
search after the other, with windows of 100 documents, to one gateway or to several in turn, until a share of the
documents is encoded.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import orjson

from benchmarks.common import heading, table
from benchmarks.figures import INK, MUTED, STRONG, figure, save
from benchmarks.served import ENCODER, Client, bulk, delete, gateway, opened, percentiles
from es_ttc.cli.common import progress_bar
from es_ttc.encoders import load_encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import attach_on_demand, detach, traces_of
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec

INDEX = "benchmark-on-demand"
WINDOW = 100
DOCUMENTS_A_TOPIC = 200
TOPIC_WORDS = 30
COMMON_WORDS = 1000
PERIODS = 20
COLD = 100
"""Searches whose times are compared with those of a gateway that encodes nothing."""
SYLLABLES = [first + second for first in "bdfgklmnprstv" for second in "aeiou"]


@dataclass(slots=True)
class Run:
    """What each search summary, in order: seconds since the first, encoded share of the index, share of its window, ms.

    ``twice`` documents were encoded by two gateways at the same time.
    """

    seconds: list[float] = field(default_factory=list)
    encoded: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    twice: float = 0.0


def main() -> None:
    """Run, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law")
    parser.add_argument("--share", type=float, default=0.25, help="the gateway's on_demand_share")
    parser.add_argument("--gateways", type=int, default=1, help="they divide the share")
    parser.add_argument("--until", type=float, default=0.2, help="encoded share of the documents at the end")
    arguments = parser.parse_args()
    run, without = asyncio.run(_measured(arguments))
    data = (
        f"{arguments.documents:,} documents, {arguments.queries:,} queries, exponent {arguments.exponent:g}, "
        f"{arguments.gateways} gateways, on_demand_share {arguments.share:g}, {len(run.ms):,} searches"
    )
    print(heading("Encoding on demand", data=data, packages=("numpy", "onnxruntime")))
    columns = ("seconds", "documents encoded", "complete windows", "documents of windows with features", "p50 ms")
    print(table(columns, [_row(run, part) for part in _periods(run)]))
    (p50, p95), (none50, none95) = percentiles(run.ms[:COLD]), percentiles(without)
    print(f"First {COLD} searches: p50 {p50:.1f} ms, p95 {p95:.1f}; with on_demand_share 0: {none50:.1f}, {none95:.1f}")
    print(f"Documents that two gateways encoded: {run.twice / (run.twice + run.encoded[-1] * arguments.documents):.1%}")
    reached = next((part for part in _periods(run) if _complete(run, part) >= 0.8), None)
    if reached is not None:
        print(f"80 % of windows are complete with {run.encoded[reached[-1]]:.1%} of the documents encoded.")
    draw(run)


async def _measured(arguments: argparse.Namespace) -> tuple[Run, list[float]]:
    rng = np.random.default_rng(0)
    async with opened(arguments.engine) as engine:
        try:
            await _make(engine, arguments.documents, rng)
            texts = queries(arguments.documents, arguments.queries, rng)
            drawn = _drawn(arguments.queries, arguments.exponent, rng)
            for _ in range(2):  # the first warms the engine up
                with gateway(arguments.engine, on_demand_share=0) as running, Client(running.url) as client:
                    without = [_search(client, texts[number])[1] for number in drawn[:COLD]]
            with ExitStack() as stack:
                share = arguments.share / arguments.gateways
                gateways = [gateway(arguments.engine, on_demand_share=share) for _ in range(arguments.gateways)]
                urls = [stack.enter_context(each).url for each in gateways]
                clients = [stack.enter_context(Client(url)) for url in urls]
                run = await asyncio.to_thread(_traffic, clients, texts, drawn, arguments)
        finally:
            for traces in await traces_of(engine, INDEX) if await engine.exists(INDEX) else ():
                await detach(engine, traces)
            await delete(engine, INDEX)
    return run, without


def _traffic(
    clients: Sequence[Client], texts: Sequence[str], drawn: Sequence[int], arguments: argparse.Namespace
) -> Run:
    """Send searches until enough is encoded."""
    run, began = Run(), time.perf_counter()
    with progress_bar() as progress:
        task = progress.add_task("encoded", total=arguments.until * arguments.documents)
        encoded = 0.0
        for count, number in enumerate(drawn):
            summary, ms = _search(clients[count % len(clients)], texts[number])
            if count % 20 == 0:
                encoded = _outcomes(clients, "encoded")
                progress.update(task, completed=encoded)
            run.seconds.append(time.perf_counter() - began)
            run.encoded.append(encoded / arguments.documents)
            run.shares.append(summary["encoded"] / summary["window"] if summary["window"] else 1.0)
            run.ms.append(ms)
            if encoded >= arguments.until * arguments.documents:
                break
    run.twice = _outcomes(clients, "changed")  # nothing else writes
    return run


def _outcomes(clients: Sequence[Client], outcome: str) -> float:
    return sum(client.metric(f'es_ttc_on_demand_documents_total{{outcome="{outcome}"}}') for client in clients)


def _search(client: Client, text: str) -> tuple[dict[str, Any], float]:
    body = {
        "query": {"match": {"text": text}},
        "size": 10,
        "_source": False,
        "rescore": {"window_size": WINDOW, "ttc": {"timeout": "60s"}},
    }
    began = time.perf_counter()
    summary: dict[str, Any] = client.search(orjson.dumps(body), INDEX)["ttc"]
    return {"encoded": summary["window"], **summary}, (time.perf_counter() - began) * 1000


async def _make(engine: Engine, documents: int, rng: np.random.Generator) -> None:
    """Make the index and an empty side index."""
    await delete(engine, INDEX)
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    await engine.create_index(INDEX, {"settings": settings, "mappings": {"properties": {"text": {"type": "text"}}}})
    lines = [
        line
        for number, text in enumerate(texts_of(documents, rng))
        for line in (orjson.dumps({"index": {"_id": str(number)}}), orjson.dumps({"text": text}))
    ]
    await bulk(engine, INDEX, lines, at_once=4000)
    await engine.refresh(INDEX)
    [source] = await Index.behind(engine, INDEX)
    await attach_on_demand(engine, source, IndexSpec(load_encoder(ENCODER).identity, text_fields=("text",)))


def texts_of(documents: int, rng: np.random.Generator) -> Iterator[str]:
    """Yield documents: twelve words of a topic, and 4 to 18 common ones."""
    of_topic, common = _weights(TOPIC_WORDS, 0.7), _weights(COMMON_WORDS, 1.0)
    for number in range(documents):
        own = rng.choice(TOPIC_WORDS, 12, p=of_topic)
        others = rng.choice(COMMON_WORDS, rng.integers(4, 19), p=common)
        words = [_word(topic_word(number // DOCUMENTS_A_TOPIC, place)) for place in own]
        yield " ".join(rng.permutation([*words, *map(_word, others)]).tolist())


def queries(documents: int, count: int, rng: np.random.Generator) -> list[str]:
    """Return queries: two or three words of a topic; the popularity of topics follows Zipf's law too."""
    topics = max(1, documents // DOCUMENTS_A_TOPIC)
    of_queries = rng.permutation(topics)[rng.choice(topics, count, p=_weights(topics, 1.0))]
    of_topic = _weights(TOPIC_WORDS, 0.7)
    return [
        " ".join(
            _word(topic_word(int(topic), int(place)))
            for place in rng.choice(TOPIC_WORDS, rng.integers(2, 4), replace=False, p=of_topic)
        )
        for topic in of_queries
    ]


def topic_word(topic: int, place: int) -> int:
    """Return the number of a topic's word; the common ones come first."""
    return COMMON_WORDS + topic * TOPIC_WORDS + place


def _word(number: int) -> str:
    syllables = [SYLLABLES[number % len(SYLLABLES)]]
    while number := number // len(SYLLABLES):
        syllables.append(SYLLABLES[number % len(SYLLABLES)])
    return "".join(syllables)


def _weights(count: int, exponent: float) -> Any:
    weights = 1 / np.arange(1, count + 1) ** exponent
    return weights / weights.sum()


def _drawn(count: int, exponent: float, rng: np.random.Generator) -> list[int]:
    return [int(number) for number in rng.choice(count, 1_000_000, p=_weights(count, exponent))]


def _periods(run: Run) -> list[Sequence[int]]:
    """Return the places of searches in periods of equal progress of encoding."""
    last = run.encoded[-1]
    bounds = np.searchsorted(run.encoded, np.linspace(0, last, PERIODS + 1))
    bounds[-1] = len(run.encoded)
    return [range(start, end) for start, end in pairwise(bounds) if start < end]


def _complete(run: Run, part: Sequence[int]) -> float:
    return fmean(run.shares[place] >= 1 for place in part)


def _row(run: Run, part: Sequence[int]) -> tuple[str, ...]:
    share = fmean(run.shares[place] for place in part)
    p50, _ = percentiles([run.ms[place] for place in part])
    last = part[-1]
    shares = (run.encoded[last], _complete(run, part), share)
    return (f"{run.seconds[last]:,.0f}", *(f"{one:.1%}" for one in shares), f"{p50:.0f}")


def draw(run: Run) -> None:
    """Draw the shares over time, and over the share of encoded documents."""
    parts = _periods(run)
    lasts = [part[-1] for part in parts]
    places = {
        "minutes": [run.seconds[last] / 60 for last in lasts],
        "documents encoded, %": [100 * run.encoded[last] for last in lasts],
    }
    lines = {
        "complete windows": (STRONG, [100 * _complete(run, part) for part in parts]),
        "documents of windows with features": (MUTED, [100 * fmean(run.shares[one] for one in part) for part in parts]),
    }
    with figure(8, 3.2) as drawn:
        for axes, (label, across) in zip(drawn.subplots(1, 2, sharey=True), places.items(), strict=True):
            for name, (colour, up) in lines.items():
                axes.plot(across, up, color=colour, label=name)
            axes.set(xlabel=label, ylim=(0, 100), xlim=(0, None))
        drawn.axes[0].set_ylabel("%", color=INK)
        drawn.axes[0].legend(frameon=False)
        save(drawn, "on_demand.svg")


if __name__ == "__main__":
    main()
