"""Questions of several parts: are all needed documents on the page, and how often is a part named open rightly?

    python -m benchmarks.parts
    python -m benchmarks.parts --split train     # the queries on which choices are made
    python -m benchmarks.parts --engine URL      # the time of searches, through a gateway before this engine

Questions of ToolLens and HotpotQA need several documents; a splitter by plain rules makes their parts. Pairs are two
queries of a collection, joined by "and": needed is a relevant document of each. All methods are blend over a window of
BM25's first 100 documents and the 100 nearest ones, in memory.

A part is open if no document answers it. Of two or four queries of a collection in one question, the last one keeps its
relevant documents, loses them, or is a query of another collection. The gateway's bound of closeness is compared with
the one that would call 10 % of the answered parts open, and with the relevance that is fitted to train queries.
"""

import asyncio
import os
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.blend import DATA, MAX_TOKENS, WINDOW, compared, parser_of, prepared, shown
from benchmarks.blend_speed import ours
from benchmarks.common import heading, table
from benchmarks.served import GROUPS, QUERY, TOKENS, Client, delete, fill, gateway, opened, percentiles
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.queries import encode
from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.bootstrap import SEED
from es_ttc.lab.evaluation.datasets import Collection, load_collection, only, sample
from es_ttc.lab.evaluation.features import encode_corpus
from es_ttc.lab.evaluation.rankings import Positions, top
from es_ttc.lab.ranking.pools import collect
from es_ttc.lab.ranking.relevance import fit_relevance, judged_hits
from es_ttc.rescorers.base import Feature, Query
from es_ttc.rescorers.blend import BlendRescorer
from es_ttc.rescorers.blend.rescorer import BlendParams
from es_ttc.rescorers.relevance import Logistic
from es_ttc.serving.rescore.best_hits import MIN_CLOSENESS, closeness_of
from es_ttc.serving.rescore.parts import in_turns
from es_ttc.serving.rescore.ranking import OrderedScores
from es_ttc.vectors.tokens import Float32

QUESTIONS = ("toollens", "hotpotqa-train-hipporag")
PAIRS = ("scifact", "cranfield", "npl-vaswani")
OPEN = ("scifact", "toollens", "hotpotqa-train-hipporag", "cranfield", "npl-vaswani")
MAX_QUESTIONS = 300
FITTED = 150
DEPTHS = (5, 10)
SIZES = (2, 4)
DRAWS = 100
ROUNDS = 300
INDEX = "benchmark-parts"
STATES = ("answered", "removed", "strange")
WRONGLY_OPEN = 0.1
"""Share of the answered parts of train queries that a bound may name open."""
MIN_RELEVANCE = 0.1
"""Chosen by it."""
_NEEDS = frozenset({Feature.POOLED, Feature.TOKENS, Feature.NORMS})
_BLEND, _PARAMS = BlendRescorer(), BlendParams()
_BETWEEN = re.compile(r"[.;?!:]\s|,\s|\b(?:and|or|while|then|but|as well as)\b", re.IGNORECASE)
_WORD = re.compile(r"\w{4,}")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its parts, and what is needed: a document of each set."""

    text: str
    parts: Sequence[str]
    needed: Sequence[frozenset[int]]


class BestHit(NamedTuple):
    """How well the best hit of a part does: closeness with token vectors and without, and relevance."""

    closeness: float
    by_dense: float
    relevance: float


BOUNDS = BestHit(MIN_CLOSENESS, MIN_CLOSENESS, MIN_RELEVANCE)


class Index:
    """A collection in memory."""

    def __init__(self, collection: Collection, encoder: Encoder) -> None:
        fields = ("title", "text")
        spec = IndexSpec(encoder.identity, text_fields=fields, codec="int8", max_tokens=MAX_TOKENS)
        self.collection = collection
        self._encoder = encoder
        self._features = encode_corpus(collection.documents, spec, encoder)
        self._words = Bm25([compose(document.source, fields)[0] for document in collection.documents])
        self._places = {document.id: place for place, document in enumerate(collection.documents)}

    def relevant(self, query: str) -> list[int]:
        """Return the places of a query's relevant documents."""
        judged = self.collection.qrels[query]
        return [self._places[name] for name, grade in judged.items() if grade > 0 and name in self._places]

    def best(self, texts: Sequence[str]) -> Positions:
        """Return the documents ranked by their best text: what several texts give without parts."""
        [query] = encode([texts], self._encoder, tokens=True)
        words = np.max([self._words.scores(text) for text in texts], axis=0)
        documents, found = self._window(words, [query.vectors])
        scores, _ = self._scores(documents, found, query, words)
        return documents[np.argsort(-scores, kind="stable")]

    def each(self, texts: Sequence[str]) -> Positions:
        """Return the documents in turns of the texts."""
        documents, scored = self.scored(texts)
        orders = [np.argsort(-scores, kind="stable") for scores, _ in scored]
        rankings = [OrderedScores(order, scores[order]) for order, (scores, _) in zip(orders, scored, strict=True)]
        turns = in_turns(rankings, len(documents))
        return documents[turns.ranking.order]

    def scored(
        self, texts: Sequence[str], without: Sequence[int] = ()
    ) -> tuple[Positions, list[tuple[Float32, Mapping[str, Float32]]]]:
        """Return the window of parts, and its scores and signals by each of them."""
        queries = encode([[text] for text in texts], self._encoder, tokens=True)
        words = [self._words.scores(text) for text in texts]
        documents, found = self._window(np.max(words, axis=0), [query.vectors for query in queries], without)
        return documents, [
            self._scores(documents, found, query, own) for query, own in zip(queries, words, strict=True)
        ]

    def _window(
        self, words: Float32, vectors: Sequence[Float32], without: Sequence[int] = ()
    ) -> tuple[Positions, NDArray[np.bool_]]:
        """Return the documents that words find and those nearest to each set of vectors; and which words find."""
        words = words.copy()
        words[[*without]] = 0
        found = top(words, WINDOW)
        first = found.documents[found.scores > 0].tolist()
        each = -(-WINDOW // len(vectors))
        nearest = []
        for some in vectors:
            cosines = (self._features.pooled @ some.T).max(axis=1)
            cosines[[*without]] = -np.inf
            nearest += top(cosines, each).documents.tolist()
        documents = np.array([*dict.fromkeys([*first, *nearest])], np.intp)
        return documents, np.arange(len(documents)) < len(first)

    def _scores(
        self, documents: Positions, found: NDArray[np.bool_], query: Query, words: Float32
    ) -> tuple[Float32, Mapping[str, Float32]]:
        window = self._features.window(documents, words[documents], _NEEDS)
        return _BLEND.score_and_signals(query, replace(window, present={Feature.FIRST_PASS: found}), _PARAMS)


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--engine", metavar="URL", help="only time searches")
    arguments = parser.parse_args()
    if arguments.engine is not None:
        print(heading("Time of parts", data=f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens"))
        print(timed(arguments.engine))
        return
    encoder, train = prepared(arguments.encoder), arguments.split == "train"
    collections = {name: loaded(name, arguments.split) for name in OPEN if not train or has_train(name)}
    indices = {name: Index(collection, encoder) for name, collection in collections.items()}
    data = ", ".join(f"{name} {len(index.collection.queries)}" for name, index in indices.items())
    print(heading(f"Parts of a question, {encoder.identity.model}", data=f"{data}; {arguments.split} queries"))
    print("### All needed documents among the first hits\n")
    print(coverage(indices), flush=True)
    print("### Open parts\n")
    models = {name: fitted(name, encoder) for name in indices if has_train(name)}
    print(open_parts(indices, models))


def has_train(name: str) -> bool:
    """Return whether a collection has train queries, of its own or a half of its test queries."""
    return name in QUESTIONS or (DATA / name / "qrels" / "train.tsv").exists()


def loaded(name: str, split: str) -> Collection:
    """Return a collection with some of its queries; of HotpotQA, which has one split, each half is one."""
    if (DATA / name / "qrels" / "train.tsv").exists() or name not in QUESTIONS:
        return sample(load_collection(DATA / name, split), MAX_QUESTIONS, SEED)
    collection = load_collection(DATA / name)
    return only(collection, {*list(collection.queries)[split == "test" :: 2]})


def split_by_rules(text: str) -> list[str]:
    """Return the parts of a question: its pieces between conjunctions and marks that hold a word."""
    pieces = [piece.strip(" .,;?!") for piece in _BETWEEN.split(text)]
    return [piece for piece in pieces if _WORD.search(piece)][:8]


def questions(index: Index) -> Iterator[Question]:
    """Yield questions that need several documents: a collection's own, or pairs of its queries."""
    queries = index.collection.queries
    if index.collection.name in QUESTIONS:
        for query, text in queries.items():
            needed = [frozenset([place]) for place in index.relevant(query)]
            if len(needed) > 1:
                yield Question(text, split_by_rules(text), needed)
        return
    names = np.random.default_rng(SEED).permutation([*queries]).tolist()
    for pair in zip(names[::2], names[1::2], strict=False):
        texts = [queries[name] for name in pair]
        needed = [frozenset(index.relevant(name)) for name in pair]
        if all(needed):
            yield Question(" and ".join(texts), texts, needed)


METHODS: Mapping[str, Callable[[Index, Question], Positions]] = {
    "one text": lambda index, question: index.best([question.text]),
    "best": lambda index, question: index.best([question.text, *question.parts]),
    "each": lambda index, question: index.each(question.parts or [question.text]),
    "each, and the whole": lambda index, question: index.each(list(dict.fromkeys([question.text, *question.parts]))),
}

COMPARED = [(ours, theirs) for ours in ("each", "each, and the whole") for theirs in ("one text", "best")]


def coverage(indices: Mapping[str, Index]) -> str:
    """Return the share of questions all of whose needed documents are among the first hits, and differences."""
    rows: list[list[object]] = []
    differences: list[list[object]] = []
    for name, index in indices.items():
        began, asked = time.perf_counter(), list(questions(index))
        values: dict[str, dict[int, list[float]]] = {method: defaultdict(list) for method in METHODS}
        for question in asked:
            for method, rank in METHODS.items():
                ranking = rank(index, question).tolist()
                for depth in DEPTHS:
                    first = set(ranking[:depth])
                    values[method][depth].append(float(all(first & needed for needed in question.needed)))
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        several = sum(len(question.parts) > 1 for question in asked)
        for depth in DEPTHS:
            shares = {method: np.array(found[depth]) for method, found in values.items()}
            rows.append([name, depth, len(asked), several, *(f"{one.mean():.3f}" for one in shares.values())])
            differences.append([name, depth, *(shown(compared(shares[a], shares[b])) for a, b in COMPARED)])
    compared_columns = ["collection", "first", *(" - ".join(pair) for pair in COMPARED)]
    shares_table = table(["collection", "first", "questions", "of several parts", *METHODS], rows)
    return f"{shares_table}\n{table(compared_columns, differences)}"


def fitted(name: str, encoder: Encoder) -> Logistic:
    """Return the relevance that `es-ttc calibrate relevance` fits to train queries."""
    collection = loaded(name, "train")
    return fit_relevance(judged_hits(collect(sample(collection, FITTED, SEED), encoder)))


def open_parts(indices: Mapping[str, Index], models: Mapping[str, Logistic]) -> str:
    """Return how often parts are named open, with an answer and without."""
    strange = {name: [*index.collection.queries.values()][:40] for name, index in indices.items()}
    rows: list[list[object]] = []
    every: list[BestHit] = []
    for name, index in indices.items():
        others = [text for other, texts in strange.items() if other != name for text in texts]
        for size in SIZES:
            hits = best_hits(index, size, others, models.get(name))
            every += hits["answered"] if name in models else []
            row: list[object] = [name, size, *(len(hits[state]) for state in STATES)]
            for measure, bound in zip(BestHit._fields, BOUNDS, strict=True):
                known = measure != "relevance" or name in models
                row += [
                    rate([getattr(hit, measure) < bound for hit in hits[state]]) if known else "" for state in STATES
                ]
            rows.append(row)
        print(f"{name}: open parts", file=sys.stderr)
    by = [f"{measure}: {state}" for measure in BestHit._fields for state in STATES]
    bounds = np.nanquantile(np.array(every), WRONGLY_OPEN, axis=0)
    said = ", ".join(f"{measure} {bound:.3f}" for measure, bound in zip(BestHit._fields, bounds, strict=True))
    rates = table(["collection", "parts", *STATES, *by], rows)
    return f"{rates}\n{WRONGLY_OPEN:.0%} of the answered parts have less: {said}\n"


def best_hits(index: Index, size: int, strange: Sequence[str], model: Logistic | None) -> dict[str, list[BestHit]]:
    """Return the best hits of parts by the state of the part."""
    found: dict[str, list[BestHit]] = defaultdict(list)
    draws, names = np.random.default_rng([SEED, size]), [*index.collection.queries]
    for draw in range(DRAWS * len(STATES)):
        queries = [names[place] for place in draws.choice(len(names), size, replace=False)]
        state, texts = STATES[draw % len(STATES)], [index.collection.queries[query] for query in queries]
        without = index.relevant(queries[-1]) if state == "removed" else []
        if state == "strange":
            texts[-1] = str(draws.choice(strange))
        _, scored = index.scored(texts, without)
        places = [int(scores.argmax()) for scores, _ in scored]
        signals = [of_part for _, of_part in scored]
        closeness, by_dense = (
            closeness_of(np.stack([of_part[name] for of_part in signals]), places)
            for name in ("late_interaction", "dense")
        )
        for part, (place, of_part) in enumerate(zip(places, signals, strict=True)):
            values = {name: one[place] for name, one in of_part.items()}
            relevance = np.nan if model is None else float(model.of(values))
            state_of_part = state if part == size - 1 else "answered"
            found[state_of_part].append(BestHit(float(closeness[part]), float(by_dense[part]), relevance))
    return found


def timed(engine: str) -> str:
    """Return the time of warm searches for one text, for several, and for as many parts; they take turns."""
    texts = [f"{QUERY}, the {word} part" for word in ("first", "second", "third", "fourth")]
    kinds: dict[str, dict[str, object]] = {"one text": {"timeout": "60s"}}
    for count in SIZES:
        several: dict[str, object] = {"query_text": None, "query_texts": texts[:count], "timeout": "60s"}
        kinds |= {f"{count} texts, the best": several, f"{count} parts": several | {"parts": "each"}}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    asyncio.run(_with_engine(engine, fill))
    with gateway(engine) as running, Client(running.url) as client:
        for turn in range(ROUNDS + GROUPS):  # each group is read once before it counts
            for kind in random.sample([*kinds], len(kinds)):
                began = time.perf_counter()
                answer = client.search(ours(turn % GROUPS, **kinds[kind]), INDEX)
                assert answer["ttc"]["applied"], answer["ttc"]
                if turn >= GROUPS:
                    times[kind].append(1000 * (time.perf_counter() - began))
    asyncio.run(_with_engine(engine, delete))
    rows = [[kind, *(f"{value:.1f}" for value in percentiles(ms))] for kind, ms in times.items()]
    return f"{ROUNDS} searches each, load {os.getloadavg()[0]:.1f}\n\n{table(['search', 'p50 ms', 'p95 ms'], rows)}"


async def _with_engine(url: str, act: Callable[[Engine, str], Awaitable[None]]) -> None:
    async with opened(url) as engine:
        await act(engine, INDEX)


def rate(named: Sequence[bool]) -> str:
    """Return a share with its 95 % interval by the normal approximation."""
    share = float(np.mean(named))
    return f"{share:.2f} ± {1.96 * np.sqrt(share * (1 - share) / len(named)):.2f}"


if __name__ == "__main__":
    main()
