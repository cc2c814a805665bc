"""SIRA's equation 2 in both forms, its default weights, and baselines that need a model, on signals of known strength.

    python -m benchmarks.sira_forms --engine URL

Signals are simulated, and say so: a model proposes words and pairs of adjacent words of a document that is judged
relevant, each replaced with a set probability by those of another document. At 1 it knows nothing. HyDE and query2doc
get passages of the same quality: sentences of the relevant document, each replaced with the same probability.
Enrichment is either the words and pairs of the train queries of four folds that are judged relevant to a document (a
good one), or words and pairs of other documents (noise). Judgements of test queries are read by the simulated model of
the query that it expands alone, so levels mean nothing; compare the rows of a table.

Everything is chosen on the train queries of the fifth fold; the test queries show what was chosen, once.

With ``--real N`` the small model's own expansions and passages for N train and N test queries are compared too. Its
answers are recorded, so it is asked once.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import click
import numpy as np
import orjson

from benchmarks.common import heading
from benchmarks.recorded_llm import Recording, model_endpoint, recorded_llm
from benchmarks.sira import (
    DATA,
    METRICS,
    Body,
    Index,
    Values,
    drawn,
    fill,
    fold_of,
    gateway,
    only,
    plain,
    rewritten,
    run,
    show,
    values,
    words,
)
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.llm.local import running_llm
from es_ttc.serving.logs import configure_logs
from es_ttc.settings import EngineSettings

ERRORS = (0.5, 0.9, 1.0)
WEIGHTS = (0.05, 0.1, 0.2, 0.5, 1.0)
FORMS = ("words", "atomic")
_PHRASES = 10
_ENRICHED = 8
_STOP = frozenset({
    "the", "and", "for", "with", "from", "that", "this", "are", "was", "were", "has", "have", "had", "not", "but",
    "its", "their", "which", "these", "been",
})  # fmt: skip
_SECONDS = 600.0


class Simulated:
    """A model that proposes words and pairs of a relevant document, or passages of it; see above."""

    def __init__(self, splits: Sequence[Collection], error: float) -> None:
        self._documents = {one.id: " ".join(one.source.values()) for one in splits[0].documents}
        self._ids = list(self._documents)
        self._error = error
        self._relevant = {
            " ".join(split.queries[query].split()): max(judged, key=lambda one: judged[one])
            for split in splits
            for query, judged in split.qrels.items()
            if any(judged.values())
        }

    def __call__(self, body: Mapping[str, Any]) -> str:
        """Answer a request for phrases or for a passage."""
        asked = body["messages"][0]["content"]
        text = max((one for one in self._relevant if one in asked), key=len)
        chance = random.Random(text)
        relevant = self._documents[self._relevant[text]]
        if "Write a passage" in asked:
            sentences = [one.split() for one in relevant.split(". ")]
            parts = [self._other(chance).split(". ")[0].split() if self._errs(chance) else one for one in sentences]
            return " ".join(word for part in parts for word in part)
        own = phrases_of(relevant, set(words(text)), chance, _PHRASES)
        proposed = [
            phrases_of(self._other(chance), set(words(text)), chance, 1)[0] if self._errs(chance) else one
            for one in own
        ]
        return orjson.dumps({"phrases": proposed}).decode()

    def _errs(self, chance: random.Random) -> bool:
        return chance.random() < self._error

    def _other(self, chance: random.Random) -> str:
        return self._documents[chance.choice(self._ids)]


def phrases_of(text: str, known: set[str], chance: random.Random, count: int) -> list[str]:
    """Return words and, every second time, pairs of adjacent words of a text that are not among the known ones."""
    said = [word for word in words(text) if word not in _STOP]
    usable = [place for place, word in enumerate(said[:-1]) if not {word, said[place + 1]} & known] or [0]
    places = [chance.choice(usable) for _ in range(count)]
    return [" ".join(said[place : place + 1 + number % 2]) or "nothing" for number, place in enumerate(places)]


def good_enrichment(collection: Collection, chosen: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return for each document words and pairs of the chosen queries that are judged relevant to it."""
    texts = {one.id: set(words(" ".join(one.source.values()))) for one in collection.documents}
    found: dict[str, list[str]] = {}
    for query, judged in collection.qrels.items():
        if chosen(query):
            said = [word for word in words(collection.queries[query]) if word not in _STOP]
            for document, grade in judged.items():
                if grade > 0 and document in texts:
                    new = [" ".join(said[at : at + size]) for size in (1, 2) for at in range(len(said) - size + 1)]
                    new = [one for one in new if not set(one.split()) <= texts[document]]
                    found.setdefault(document, []).extend(new)
    return {document: list(dict.fromkeys(new)) for document, new in found.items()}


def noise(collection: Collection) -> dict[str, list[str]]:
    """Return for each document words and pairs of other documents."""
    texts = [" ".join(one.source.values()) for one in collection.documents]
    chance = random.Random(0)
    return {
        one.id: [phrases_of(chance.choice(texts), set(), chance, 2)[place % 2] for place in range(_ENRICHED)]
        for one in collection.documents
    }


def searched(method: str, **params: Any) -> Callable[[str, str], Body]:
    return lambda _, text: rewritten(text, method, **params)


def sira(form: str, weight: float, enrichment: float = 0, **params: Any) -> Callable[[str, str], Body]:
    return searched("sira", weight=weight, enrichment=enrichment, phrase_score=form, phrases=_PHRASES, **params)


class Bench:
    """Searches a collection's index through gateways, one for each simulated model."""

    def __init__(self, runner: asyncio.Runner, engine: str) -> None:
        self._runner = runner
        self._engine = engine
        self.direct: Engine = runner.run(connect(EngineSettings(engine=engine)))

    @contextmanager
    def index(self, collection: Collection, enrichment: Mapping[str, list[str]]) -> Iterator[str]:
        """Index the collection for a while, and give the index's name."""
        name = f"bench-forms-{random.SystemRandom().randrange(10**9)}"
        try:
            self._runner.run(fill(self.direct, name, collection, {"enrichment": {**enrichment}}))
            yield name
        finally:
            self._runner.run(self.direct.delete_index(name))

    @contextmanager
    def client(self, llm: str, api: str = "chat") -> Iterator[Engine]:
        """Run a gateway in front of the engine with this model, and give a client of it."""
        with gateway(self._engine, llm, api) as url:
            found = self._runner.run(connect(EngineSettings(engine=url, request_timeout=_SECONDS)))
            try:
                yield found
            finally:
                self._runner.run(found.close())

    def on(self, index: Index, split: Collection, query: Callable[[str, str], Body]) -> Values:
        """Return the metrics of a split's queries."""
        return values(split, self._runner.run(run(index, split.queries, query)))


def mean(found: Values) -> float:
    return float(np.mean(found[METRICS[0]]))


def simulated(bench: Bench, train: Collection, test: Collection) -> None:
    chosen = only(train, [query for query in train.queries if fold_of(query) == 0])
    others = good_enrichment(train, lambda query: fold_of(query) != 0)
    with ExitStack() as stack:
        noisy = stack.enter_context(bench.index(train, noise(train)))
        good = stack.enter_context(bench.index(train, others))
        final = stack.enter_context(bench.index(train, good_enrichment(train, lambda _: True)))
        clients = {
            error: stack.enter_context(
                bench.client(stack.enter_context(model_endpoint(Simulated((train, test), error))))
            )
            for error in ERRORS
        }
        one = next(iter(clients.values()))
        base = bench.on(Index(one, good), chosen, lambda _, text: plain(text))
        for label, name in (("other train queries' words (good)", good), ("other documents' words (noise)", noisy)):
            found = {"BM25": base} | {
                f"{form}, weight {weight:g}": bench.on(Index(one, name), chosen, sira(form, 0, weight))
                for form in FORMS
                for weight in WEIGHTS
            }
            show(f"train, enrichment alone: {label}", found)
        for error, client in clients.items():
            found = {"BM25": base} | {
                f"{form}, w {weight:g}": bench.on(Index(client, noisy), chosen, sira(form, weight))
                for form in FORMS
                for weight in WEIGHTS
            }
            show(f"train, expansion alone, errs by {error:.0%}", found)
            show(
                f"train, baselines, errs by {error:.0%}",
                {"BM25": base}
                | {
                    f"{method}, w {weight:g}": bench.on(Index(client, noisy), chosen, searched(method, weight=weight))
                    for method in ("hyde", "query2doc")
                    for weight in WEIGHTS[1:]
                },
            )
        plainly = bench.on(Index(one, final), test, lambda _, text: plain(text))
        for error, client in clients.items():
            index = Index(client, final if error < 1 else noisy)
            added = "good" if error < 1 else "noise for"
            methods = {
                f"sira, {form}, both weights {weight:g}": sira(form, weight, weight)
                for form in FORMS
                for weight in (0.1, 0.2, 0.5)
            } | {"hyde": searched("hyde"), "query2doc": searched("query2doc")}
            found = {name: bench.on(index, test, query) for name, query in methods.items()}
            show(f"test, {added} enrichment, model errs by {error:.0%}", {"BM25": plainly} | found)


def real(bench: Bench, train: Collection, test: Collection, count: int) -> None:
    recording = Recording("gemma-3-270m")
    few = drawn(train, count), drawn(test, count)
    with ExitStack() as stack:
        url = stack.enter_context(recorded_llm(recording, stack.enter_context(running_llm())))
        name = stack.enter_context(bench.index(train, {}))
        index = Index(stack.enter_context(bench.client(url, "completions")), name)
        for split, label in zip(few, ("train", "test"), strict=True):
            methods = {
                f"sira, {form}, w {weight:g}": searched(
                    "sira", weight=weight, phrase_score=form, prompt="claims", phrases=6
                )
                for form in FORMS
                for weight in WEIGHTS
            } | {
                f"{method}, w {weight:g}": searched(method, weight=weight, length=30)
                for method in ("hyde", "query2doc")
                for weight in WEIGHTS[1:]
            }
            found = {"BM25": bench.on(index, split, lambda _, text: plain(text))}
            found |= {name: bench.on(index, split, query) for name, query in methods.items()}
            show(f"{label}, {count} queries: gemma-3-270m, a base model", found)
    click.echo(f"Answers recorded: {len(recording)}.")


@click.command(help=__doc__)
@click.option("--engine", required=True, metavar="URL", help="An engine to index in.")
@click.option("--data", default="scifact", show_default=True, help="Collection with a train and a test split.")
@click.option("--real", "asked", type=click.IntRange(0), default=0, help="Queries of each split for the small model.")
@click.option("--real-only", is_flag=True, help="Leave the simulations out.")
def main(engine: str, data: str, asked: int, real_only: bool) -> None:
    configure_logs("auto", logging.ERROR)
    train, test = (load_collection(DATA / data, split) for split in ("train", "test"))
    with asyncio.Runner() as runner:
        bench = Bench(runner, engine)
        try:
            click.echo(heading("SIRA's two forms", data=f"{data} ({len(test.documents):,} documents)"))
            if not real_only:
                simulated(bench, train, test)
            if asked:
                real(bench, train, test, asked)
        finally:
            runner.run(bench.direct.close())


if __name__ == "__main__":
    main()
