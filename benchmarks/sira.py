"""SIRA by component: enrichment, query expansion, both, and the pick; ablations; RM3 as a baseline.

    python -m benchmarks.sira --engine URL

A language model that runs here is too weak to evaluate the method, so two signals of known strength take its place;
both are simulations and say so in the tables:

- *Enrichment from train queries*: each document gets the words of the **train** queries that are judged relevant to it,
  as far as its text lacks them. Test queries and their judgements are never read. On the test split it shows what other
  people's words for the same documents are worth, and can help only where a test query shares a document with a train
  query. On the train split it is cross-fitted: five folds, each searched with what the other four have left.
- *A model that knows a relevant document and errs*: it proposes words of a document that is judged relevant, each of
  them with a set probability replaced by a word of another document, and beside them words that no document has and
  words that most have. It reads the judgements of the query that it expands, so its level means nothing; what it shows
  is how weight and document frequency filter act on proposals of known quality.

Weights are chosen on the train split. Through a real engine and the gateway.
"""

import asyncio
import hashlib
import logging
import math
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.common import heading, table
from benchmarks.simulated_llm import model_endpoint
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.lab.evaluation.bootstrap import compare, resampled_means
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.serving.logs import configure_logs
from es_ttc.serving.server import running_gateway
from es_ttc.settings import EngineSettings, GatewaySettings

DATA = Path(__file__).parents[2] / "shared" / "data"
FIELDS = ("title", "text")
FOLDS = 5
ERROR = 0.5
PICK_ERROR = 0.2
METRICS = ("ndcg@10", "recall@10", "recall@100")
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
TAUS = (0.001, 0.01, 0.02, 0.05, 0.1, 1.0)
_WORD = re.compile(r"[a-z][a-z0-9-]{2,}")
_MODEL_SECONDS = 600.0
_BULK = 500
_BEGINNING = 100  # characters of a document that tell it from others
Values = dict[str, NDArray[np.float64]]
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Index:
    """Where the collection stands, and who searches it.

    Attributes:
        engine: A client of the gateway.
        name: The index.
    """

    engine: Engine
    name: str


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def from_queries(collection: Collection, chosen: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return for each document the words of the chosen queries judged relevant to it that its text lacks."""
    texts = {one.id: set(words(" ".join(one.source.values()))) for one in collection.documents}
    found: dict[str, list[str]] = {}
    for query, judged in collection.qrels.items():
        if chosen(query):
            for document, grade in judged.items():
                if grade > 0 and document in texts:
                    new = [one for one in words(collection.queries[query]) if one not in texts[document]]
                    found.setdefault(document, []).extend(new)
    return {document: list(dict.fromkeys(new)) for document, new in found.items()}


def fold_of(query: str) -> int:
    return int(hashlib.sha256(query.encode()).hexdigest(), 16) % FOLDS


def _outside(fold: int) -> Callable[[str], bool]:
    return lambda query: fold_of(query) != fold


def _best(judged: Mapping[str, int]) -> str:
    return max(judged, key=lambda document: judged[document])


class ErringModel:
    """Proposes words of a relevant document; a simulation.

    Args:
        splits: The collection with the judgements of each split.
        error: Probability that a word comes from another document.
    """

    def __init__(self, splits: Sequence[Collection], error: float) -> None:
        documents = splits[0].documents
        self._counts = {one.id: Counter(words(" ".join(one.source.values()))) for one in documents}
        frequency = Counter(word for counts in self._counts.values() for word in counts)
        self._idf = {word: math.log(len(documents) / count) for word, count in frequency.items()}
        self._common = [word for word, _ in frequency.most_common(40)][20:]
        self._error = error
        self._documents = {" ".join(" ".join(one.source.values()).split())[:_BEGINNING]: one.id for one in documents}
        self._relevant = {
            " ".join(split.queries[query].split()): _best(judged)
            for split in splits
            for query, judged in split.qrels.items()
            if any(judged.values())
        }

    def __call__(self, body: Mapping[str, Any]) -> str:
        """Answer a question, for a sketch or for a rating."""
        asked = body["messages"][0]["content"]
        text = max((one for one in self._relevant if one in asked), key=len)
        if "Rate how well" in asked:
            return self._rating(text, asked)
        chance = random.Random(text)
        known = set(words(text))
        proposed = []
        best = self._telling(self._relevant[text], known)
        for word in best[:10]:
            other = self._telling(chance.choice(list(self._counts)), known)
            proposed.append(chance.choice(other[:10]) if other and chance.random() < self._error else word)
        proposed += [f"unheard{chance.randrange(1000)}", *chance.sample(self._common, 4)]
        return orjson.dumps({"phrases": proposed}).decode()

    def _rating(self, text: str, asked: str) -> str:
        """Rate a passage by whether it is judged relevant, wrong in one case of five."""
        passage = asked.partition("Passage:\n")[2][:_BEGINNING]
        right = self._documents.get(passage) == self._relevant[text]
        wrong = random.Random(f"{text}{passage}").random() < PICK_ERROR
        return orjson.dumps({"score": 90 if right != wrong else 10}).decode()

    def _telling(self, document: str, known: set[str]) -> list[str]:
        counts = self._counts.get(document, Counter())
        new = [word for word in counts if word not in known]
        return sorted(new, key=lambda word: (-counts[word] * self._idf[word], word))


async def fill(
    engine: Engine, name: str, collection: Collection, fields: Mapping[str, Mapping[str, list[str]]]
) -> None:
    """Index the texts, and each enrichment in a field of its own."""
    text = {"type": "text", "analyzer": "english"}
    added = {"type": "text", "analyzer": "english", "norms": False}
    properties: Body = dict.fromkeys(FIELDS, text)
    properties["ttc"] = {"properties": dict.fromkeys(fields, added)}
    settings = {"index": {"number_of_shards": 1, "number_of_replicas": 0}}
    mappings = {"_meta": {"ttc": {"text_fields": [*FIELDS]}}, "properties": properties}
    await engine.create_index(name, {"settings": settings, "mappings": mappings})
    lines: list[bytes] = []
    for document in collection.documents:
        extra = {one: given[document.id] for one, given in fields.items() if given.get(document.id)}
        lines += [orjson.dumps({"index": {"_id": document.id}}), orjson.dumps({**document.source, "ttc": extra})]
    for start in range(0, len(lines), 2 * _BULK):
        items = await engine.bulk(name, lines[start : start + 2 * _BULK])
        if not all(item.ok for item in items):
            raise click.ClickException("a document was rejected")
    await engine.refresh(name)


def plain(text: str, enrichment: str | None = None, weight: float = 1.0) -> Body:
    """Return BM25 over the text fields, with a field of enrichment where one is named."""
    own: Body = {"multi_match": {"query": text, "fields": [*FIELDS], "tie_breaker": 0.5}}
    if enrichment is None:
        return own
    return {"bool": {"should": [own, {"match": {f"ttc.{enrichment}": {"query": text, "boost": weight}}}]}}


def of_other_folds(weight: float) -> Callable[[str, str], Body]:
    """Return the search of a train query in what the queries of other folds have left."""
    return lambda name, text: plain(text, f"fold{fold_of(name)}", weight)


def feedback_query(weight: float) -> Callable[[str, str], Body]:
    return lambda _, text: rewritten(text, "rm3", weight=weight)


def rewritten(text: str, method: str, **params: Any) -> Body:
    given = {"text_fields": [*FIELDS], "enrichment": 0, **params}
    return {"ttc": {"method": method, "query_text": text, "params": given, "timeout": "300s", "on_error": "fail"}}


async def run(index: Index, queries: Mapping[str, str], query: Callable[[str, str], Body]) -> dict[str, list[str]]:
    """Return the 100 best documents of every query."""
    room = asyncio.Semaphore(4)

    async def one(name: str, text: str) -> tuple[str, list[str]]:
        async with room:
            body = query(name, text)
            body = body if "query" in body else {"query": body}
            found = await index.engine.search(index.name, {**body, "size": 100, "_source": False})
            return name, [hit["_id"] for hit in found["hits"]["hits"]]

    return dict(await asyncio.gather(*(one(name, text) for name, text in queries.items())))


def values(collection: Collection, rankings: Mapping[str, list[str]]) -> Values:
    return {metric: score_by(metric, collection.qrels, rankings) for metric in METRICS}


def rows(found: Mapping[str, Values], baseline: str) -> Iterator[list[str]]:
    """Yield a row a method: its means, and nDCG@10 against the baseline with a bootstrap interval."""
    for name, one in found.items():
        row = [name, *(f"{np.mean(one[metric]):.3f}" for metric in METRICS)]
        if name == baseline:
            yield [*row, "baseline"]
            continue
        both = np.stack([one[METRICS[0]], found[baseline][METRICS[0]]])
        means = resampled_means(both)
        versus = compare(both[0], both[1], means[:, 0], means[:, 1])
        low, high = versus.interval.low, versus.interval.high
        yield [*row, f"{versus.delta:+.3f} ({low:+.3f} to {high:+.3f}), {versus.wins}/{versus.ties}/{versus.losses}"]


def show(title: str, found: Mapping[str, Values], baseline: str = "BM25") -> None:
    columns = ["method", *METRICS, "Δ nDCG@10 (95 %), won/tied/lost"]
    click.echo(f"### {title}\n\n{table(columns, rows(found, baseline))}")


@contextmanager
def gateway(engine: str, llm: str) -> Iterator[str]:
    settings = GatewaySettings(engine=engine, port=0, llm_url=llm, scoring_timeout_ms=300_000)
    with running_gateway(settings, load=_no_encoder) as url:
        yield url


def _no_encoder(_name: str, _folder: Path) -> Any:
    raise RuntimeError("nothing is encoded here")


def best_weight(found: Mapping[float, Values]) -> float:
    return max(found, key=lambda weight: float(np.mean(found[weight][METRICS[0]])))


async def simulated(index: Index, train: Collection, test: Collection) -> None:
    """Components and ablations with the two simulated signals."""

    def sira(weight: float, *, enriched: bool = False, **params: Any) -> Callable[[str, str], Body]:
        extra = {"enrichment": 1} if enriched else {}
        return lambda _, text: rewritten(text, "sira", weight=weight, phrases=15, **extra, **params)

    async def on(split: Collection, query: Callable[[str, str], Body]) -> Values:
        return values(split, await run(index, split.queries, query))

    by_weight = {weight: await on(train, sira(weight)) for weight in WEIGHTS}
    weight = best_weight(by_weight)
    rm3 = {one: await on(train, feedback_query(one)) for one in WEIGHTS[1:5]}
    feedback = best_weight(rm3)
    folds = {one: await on(train, of_other_folds(one)) for one in WEIGHTS}
    added = best_weight(folds)
    click.echo(f"Chosen on train: w {weight:g}, weight of enrichment {added:g}, RM3's weight {feedback:g}.\n")
    base = {"BM25": by_weight[0.0]}
    show("train, cross-fitted: words of other train queries for the same document (simulation)",
         base | {f"BM25 + enrichment, weight {one:g}": folds[one] for one in WEIGHTS[1:]})  # fmt: skip
    pick = {"method": "llm_pick", "params": {"budget": 20}, "timeout": "300s", "on_error": "fail"}

    def picked(_: str, text: str) -> Body:
        section = {**pick, "query_text": text}
        query = rewritten(text, "sira", weight=weight, phrases=15, enrichment=1)
        return {"query": query, "rescore": {"window_size": 100, "ttc": section}}

    show("test: components", {
        "BM25": await on(test, lambda _, text: plain(text)),
        "RM3": await on(test, feedback_query(feedback)),
        "BM25 + enrichment (train queries)": await on(test, lambda _, text: plain(text, "enrichment", added or 1)),
        f"BM25 + expansion (knows a relevant document, errs by {ERROR:.0%})": await on(test, sira(weight)),
        "BM25 + both": await on(test, sira(weight, enriched=True)),
        f"BM25 + both + pick of the first 20 (errs by {PICK_ERROR:.0%})": await on(test, picked),
    })  # fmt: skip
    off = await on(train, sira(weight, tau=1))
    show(f"train: weight of an erring model's expansion, tau .05, errs by {ERROR:.0%} (simulation)",
         {"BM25" if one == 0 else f"w {one:g}": found for one, found in by_weight.items()})  # fmt: skip
    by_tau = {f"tau {tau:g}": await on(train, sira(weight, tau=tau)) for tau in TAUS[:-1]}
    show(f"train: document frequency filter at w {weight:g} (simulation)",
         base | by_tau | {"no upper bound (tau 1)": off})  # fmt: skip


async def latency(index: Index, queries: Mapping[str, str], weight: float = 0.5, repeat: int = 300) -> None:
    """What a warm query costs beside the same native query through the same gateway."""
    text = next(iter(queries.values()))
    asked = rewritten(text, "sira", weight=weight, phrases=15)
    first = await index.engine.search(index.name, {"query": {"ttc": {**asked["ttc"], "detail": True}}, "size": 10})
    terms = [one["term"] for one in first["ttc"]["expansion"]]
    phrases: list[Body] = [
        {"multi_match": {"query": term, "type": "phrase", "fields": [*FIELDS], "tie_breaker": 0.5}} for term in terms
    ]
    native = {"bool": {"should": [plain(text), {"bool": {"should": phrases, "boost": weight}}]}}
    times: dict[str, list[float]] = {"native": [], "sira": []}
    inside = []
    for _ in range(repeat):
        for kind, query in (("native", native), ("sira", asked)):
            start = time.perf_counter()
            answer = await index.engine.search(index.name, {"query": query, "size": 10, "_source": False})
            times[kind].append((time.perf_counter() - start) * 1000)
            if kind == "sira":
                inside.append(answer["ttc"]["took"]["rewrite"])
    p50 = {kind: statistics.median(found) for kind, found in times.items()}
    p95 = {kind: sorted(found)[int(0.95 * repeat)] for kind, found in times.items()}
    click.echo("### latency of a warm query, ms\n")
    click.echo(
        table(
            ["what", "p50", "p95"],
            [
                ["the same native query through the gateway", f"{p50['native']:.2f}", f"{p95['native']:.2f}"],
                [f"sira, warm, {len(terms)} terms", f"{p50['sira']:.2f}", f"{p95['sira']:.2f}"],
                ["added, of the medians", f"{p50['sira'] - p50['native']:.2f}", ""],
                [
                    "of which rewriting itself",
                    f"{statistics.median(inside):.2f}",
                    f"{sorted(inside)[int(0.95 * repeat)]:.2f}",
                ],
            ],
        )
    )


def part(collection: Collection, step: int) -> Collection:
    return only(collection, list(collection.queries)[::step])


def only(collection: Collection, names: Sequence[str]) -> Collection:
    """Return the collection with some of its queries, in this order."""
    queries = {query: collection.queries[query] for query in names}
    return replace(collection, queries=queries, qrels={query: collection.qrels[query] for query in names})


@click.command(help=__doc__)
@click.option("--engine", required=True, metavar="URL", help="An engine to index in.")
@click.option("--data", default="scifact", show_default=True, help="Collection with a train and a test split.")
@click.option("--step", type=click.IntRange(1), default=1, show_default=True, help="Take every so many-th train query.")
def main(engine: str, data: str, step: int) -> None:
    configure_logs(logging.ERROR)
    train, test = (load_collection(DATA / data, split) for split in ("train", "test"))
    name = f"bench-sira-{random.SystemRandom().randrange(10**9)}"
    with asyncio.Runner() as runner, ExitStack() as stack:
        direct = runner.run(connect(EngineSettings(engine=engine)))
        stack.callback(lambda: runner.run(direct.close()))
        found = runner.run(direct.capabilities())
        product = f"{found.product} {'.'.join(map(str, found.version))}"
        told = f"{len(test.documents):,} documents, {len(train.queries)} train and {len(test.queries)} test queries"
        click.echo(heading("SIRA by component", data=f"{data} ({told}), {product}"))
        _simulated(runner, direct, engine, name, train, test, step)


def _simulated(
    runner: asyncio.Runner, direct: Engine, engine: str, name: str, train: Collection, test: Collection, step: int
) -> None:
    fields = {"enrichment": from_queries(train, lambda _: True)}
    fields |= {f"fold{one}": from_queries(train, _outside(one)) for one in range(FOLDS)}
    click.echo(f"Train queries enrich {len(fields['enrichment']):,} documents.\n")
    with ExitStack() as stack:
        stack.callback(lambda: runner.run(direct.delete_index(name)))
        runner.run(fill(direct, name, test, fields))
        erring = stack.enter_context(model_endpoint(ErringModel((train, test), ERROR)))
        client = _through(runner, stack, engine, erring)
        index = Index(client, name)
        runner.run(simulated(index, part(train, step), test))
        runner.run(latency(index, test.queries))


def _through(runner: asyncio.Runner, stack: ExitStack, engine: str, llm: str) -> Engine:
    through = EngineSettings(engine=stack.enter_context(gateway(engine, llm)), request_timeout=_MODEL_SECONDS)
    client = runner.run(connect(through))
    stack.callback(lambda: runner.run(client.close()))
    return client


if __name__ == "__main__":
    main()
