"""What `es-ttc learn` gains: by collection, teacher and number of queries, on test queries.

    python -m benchmarks.learning --collections toollens,cranfield,hotpotqa-train-hipporag
    python -m benchmarks.learning --beside --collections toollens,scifact --sizes 200,800
    python -m benchmarks.learning --poisoned --collections toollens,scifact
    python -m benchmarks.learning --learning-rates 1e-3,3e-3,1e-2 --collections scifact,qmsum-meetings --sizes 400

Queries to learn from are a collection's train queries; where it has none, a random half of its queries, and the test is
the other half. Teacher `blend` sees no judgement; `reranker` is msmarco-minilm; `clicks` are two on each relevant
document. `written`: whether the command would write the adapter, by its own verdict on queries that were left out (five
folds). Everything is in memory, with token vectors in the default codec.

`--beside`: blend, taught by judgements, beside its parts, hybrid search and msmarco-minilm over BM25's first documents.

`--poisoned`: a tenth of the log is an attacker's, who wants one document up and asks queries in whose candidates it is,
and clicks on it alone; the other nine tenths click on what is judged relevant.

`--learning-rates`: without test queries; those to learn from are ranked in five folds, each by what the others teach.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.blend import DATA, METHODS
from benchmarks.common import heading, table
from benchmarks.rerankers import MAX_CHARACTERS, KeptScores, reranked
from es_ttc.encoders import CachedEncoder, Encoder, load_encoder
from es_ttc.encoders.trained import TrainedEncoder
from es_ttc.index.ingest.compose import compose
from es_ttc.lab.discovery.tasks import GENERATED
from es_ttc.lab.evaluation.bootstrap import Comparison
from es_ttc.lab.evaluation.datasets import Collection, load_collection, only, sample, splits
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import NDCG_10, score_by
from es_ttc.lab.evaluation.plan import EvaluationPlan
from es_ttc.lab.evaluation.tuning import compared
from es_ttc.lab.learning.evaluation import by_dense, cross_fitted_pools, evaluation_of
from es_ttc.lab.learning.teachers import TEACHERS, TeacherTarget, blend_scores, first_documents, targets
from es_ttc.lab.learning.training import MAX_SHARE, MIN_QUERIES, fit_adapters, loop_options
from es_ttc.lab.ranking.pools import Pools, collect, pools_of
from es_ttc.lab.ranking.weights import values_of_default
from es_ttc.reranking.rerankers import Passage
from es_ttc.reranking.rerankers.cross_encoder import built_in
from es_ttc.reranking.strategies.methods import MSMARCO_MINILM
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.settings import Settings
from es_ttc.vectors.codecs import DEFAULT_CODEC
from es_ttc.vectors.tokens import Float64

SIZES = (50, 200, 800)
SEED = 0
MAX_TEST = 200
CLICKS = 2.0
"""Weight of the clicks on a document that somebody is satisfied with."""
ATTACKED = 6
"""Documents that attackers want up, one after the other."""

Clicks = Mapping[str, Mapping[str, float]]
Sides = Literal["queries", "both"]


class Corpus:
    """A collection, its documents encoded once."""

    def __init__(self, name: str, encoder: Encoder, most: int, learning_rate: float) -> None:
        self.name, self.encoder = Path(name).name, encoder
        self.loop = replace(loop_options(SEED), learning_rate=learning_rate)
        self.train, self.test = parts(name, most)
        method = resolve_one("blend", {"signals": dict.fromkeys(DEFAULT_SIGNALS, 1)})
        self._plan = EvaluationPlan((method,), first_pass="bm25", codec=DEFAULT_CODEC)
        self.texts = [compose(document.source, ("title", "text"))[0] for document in self.test.documents]
        self._reranked: dict[str, Mapping[str, float]] = {}
        self._features = encode_corpus(self.test.documents, self._plan.spec(self.test, encoder), encoder)

    def pools(self, collection: Collection, encoder: Encoder) -> Pools:
        """Return the pools of some queries, which an encoder may have another adapter for than for documents."""
        if isinstance(encoder, TrainedEncoder) and encoder.heads["document"].layers:
            return collect(collection, encoder, codec=DEFAULT_CODEC)
        searcher = self.searcher(collection, encoder)
        return pools_of(collection, searcher, DEFAULT_SIGNALS, encoder.identity.key, self._plan.settings())

    def searcher(self, collection: Collection, encoder: Encoder) -> MemorySearcher:
        """Return what answers some queries, encoded by an encoder."""
        queries = encode_queries([*collection.queries.values()], encoder, tokens=True)
        known = retrieval(self._plan.methods)
        return MemorySearcher(collection, self.texts, known, self._features, queries, first_pass="bm25")

    def reranked(self, pools: Pools) -> Mapping[str, Mapping[str, float]]:
        """Return the scores of a cross-encoder, of each query's documents once."""
        texts = {document.id: text for document, text in zip(self.test.documents, self.texts, strict=True)}
        asked = [
            one for one in zip(pools.pools, first_documents(pools), strict=True) if one[0].query not in self._reranked
        ]

        async def ask() -> None:
            reranker = built_in()[MSMARCO_MINILM]()
            for pool, names in asked:
                passages = [Passage("", texts[name][: reranker.settings.max_characters]) for name in names]
                scores = await reranker.scores(self.train.queries[pool.query], passages)
                self._reranked[pool.query] = dict(zip(names, scores, strict=True))

        asyncio.run(ask())
        return {pool.query: self._reranked[pool.query] for pool in pools.pools}

    def taught(
        self,
        pools: Pools,
        said: Sequence[TeacherTarget],
        *,
        sides: Sides = "queries",
        max_share: float = MAX_SHARE,
    ) -> TrainedEncoder:
        """Return the encoder that has learned what teachers say about some pools."""
        heads = fit_adapters(pools, said, loop=self.loop, both=sides == "both", max_share=max_share).heads
        return TrainedEncoder(self.encoder, heads, replace(self.encoder.identity, revision=f"{sides}-{len(pools)}"))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", default="toollens,cranfield,hotpotqa-train-hipporag,scifact")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of queries")
    parser.add_argument("--teachers", default="judgements,blend", help="of judgements, clicks, reranker, blend")
    parser.add_argument("--sides", default="queries", help="what gets an adapter: queries, both, or both names")
    parser.add_argument("--learning-rate", type=float, default=loop_options().learning_rate)
    parser.add_argument("--learning-rates", help="compare these on the queries to learn from")
    parser.add_argument("--no-verdict", action="store_true", help="leave out the five folds, most of the time")
    parser.add_argument("--beside", action="store_true", help="compare with other rankings")
    parser.add_argument("--poisoned", action="store_true", help="a tenth of the log is an attacker's")
    parser.add_argument(
        "--bounds", default=f"1,{MAX_SHARE}", help="shares that one document may have of what is taught"
    )
    arguments = parser.parse_args()
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder("minilm@onnx", cache_dir=cache), cache / "encodings")
    print(heading("Learning from a query log, all-MiniLM-L6-v2", data=arguments.collections, packages=("torch",)))
    sizes = [int(size) for size in arguments.sizes.split(",")]
    rows: list[tuple[object, ...]] = []
    for name in arguments.collections.split(","):
        most = 4 * max(sizes) if arguments.poisoned else max(sizes)
        corpus = Corpus(name, encoder, most, arguments.learning_rate)
        if arguments.poisoned:
            rows += poisoned(corpus, sizes[0], [float(bound) for bound in arguments.bounds.split(",")])
        elif arguments.beside:
            rows += beside(corpus, sizes)
        elif arguments.learning_rates:
            rows += by_rate(corpus, arguments.teachers.split(","), map(float, arguments.learning_rates.split(",")))
        else:
            given = (sizes, arguments.teachers.split(","), arguments.sides.split(","))
            rows += gains(corpus, *given, with_verdict=not arguments.no_verdict)
    if arguments.beside:
        print(table((*BESIDE, *(f"gained over it with {size} judged" for size in sizes)), rows))
    else:
        print(table(POISONED if arguments.poisoned else RATES if arguments.learning_rates else GAINS, rows))


GAINS = ("collection", "teacher", "learned", "queries", "dense before", "dense", "blend before", "blend", "written")


def gains(
    corpus: Corpus, sizes: Sequence[int], teachers: Sequence[str], sides: Sequence[Any], *, with_verdict: bool
) -> list[tuple[object, ...]]:
    """Return the rows of one collection."""
    before, asked = corpus.pools(corpus.test, corpus.encoder), corpus.pools(corpus.train, corpus.encoder)
    order = np.random.default_rng(SEED).permutation(len(asked))
    rows: list[tuple[object, ...]] = []
    for size in dict.fromkeys(min(size, len(asked)) for size in sizes):
        some = asked.some(order[:size])
        for teacher, side in ((teacher, side) for teacher in teachers for side in sides):
            began = time.perf_counter()
            said = said_by(teacher, some, corpus)
            after = corpus.pools(corpus.test, corpus.taught(some, said, sides=side))
            written = clear(corpus, some, said, side, teacher) if with_verdict else "not asked"
            dense, blend = by_dense(before), values_of_default(before, NDCG_10)
            gained = (difference(by_dense(after), dense), difference(values_of_default(after, NDCG_10), blend))
            row = (corpus.name, teacher, side, size, f"{dense.mean():.3f}", gained[0], f"{blend.mean():.3f}", gained[1])
            rows.append((*row, written))
            print(*rows[-1], f"{time.perf_counter() - began:.0f} s", sep=" | ", file=sys.stderr, flush=True)
    return rows


BESIDE = ("collection", "ranking", NDCG_10)
RIVALS = {
    "BM25": "bm25",
    "vectors alone": "dense",
    "late interaction alone": "late",
    "RRF of BM25 and vectors": "RRF(b,d)",
    "blend": "blend",
}
DEPTH = 20


def beside(corpus: Corpus, sizes: Sequence[int]) -> list[tuple[object, ...]]:
    """Return the rows of one collection: what each ranking reaches, and what blend gains over it by judgements."""
    searcher = corpus.searcher(corpus.test, corpus.encoder)
    rankings = {name: searcher.rank(resolve_one(*METHODS[method])).rankings for name, method in RIVALS.items()}
    texts = {one.id: text[:MAX_CHARACTERS] for one, text in zip(corpus.test.documents, corpus.texts, strict=True)}
    scores = KeptScores(corpus.test, texts)
    rankings[f"msmarco-minilm over BM25's first {DEPTH}"] = {
        query: reranked(ranking, scores, query, DEPTH) for query, ranking in rankings["BM25"].items()
    }
    scores.keep()
    judged = {query: corpus.test.qrels[query] for query in corpus.test.queries}
    values = {name: score_by(NDCG_10, judged, ranking) for name, ranking in rankings.items()}
    asked = corpus.pools(corpus.train, corpus.encoder)
    order = np.random.default_rng(SEED).permutation(len(asked))
    learned: list[Float64] = []
    for size in sizes:
        some = asked.some(order[:size])
        taught = corpus.taught(some, said_by("judgements", some, corpus))
        learned.append(values_of_default(corpus.pools(corpus.test, taught), NDCG_10))
        values[name := f"blend, {len(some)} judged queries"] = learned[-1]
        print(corpus.name, name, difference(learned[-1], values["blend"]), sep=" | ", file=sys.stderr, flush=True)
    return [
        (corpus.name, name, f"{one.mean():.3f}", *("" if after is one else difference(after, one) for after in learned))
        for name, one in values.items()
    ]


def said_by(teacher: str, pools: Pools, corpus: Corpus) -> list[TeacherTarget]:
    """Return what a teacher says."""
    reranked = corpus.reranked(pools) if teacher == "reranker" else {}
    return targets(pools, clicks_of(pools, corpus), reranked, allowed=[one for one in TEACHERS if one == teacher])


def clicks_of(pools: Pools, corpus: Corpus) -> Clicks:
    """Return the clicks of each query."""
    return {pool.query: clicks_on(corpus.train.qrels[pool.query]) for pool in pools.pools}


def clicks_on(judged: Mapping[str, int]) -> dict[str, float]:
    """Return the clicks of somebody who knows what is relevant."""
    return {document: CLICKS for document, grade in judged.items() if grade > 0}


def clear(corpus: Corpus, pools: Pools, said: Sequence[TeacherTarget], sides: Sides, teacher: str) -> str:
    """Return whether the command would write what it has learned."""
    if teacher in ("reranker", "blend"):
        return "no"  # nothing proves it
    after = in_folds(corpus, pools, said, sides)
    given = (pools, after) if teacher == "judgements" else (unjudged(pools), unjudged(after))
    clicks = clicks_of(pools, corpus) if teacher == "clicks" else {}
    return "yes" if evaluation_of(*given, clicks, least=MIN_QUERIES, seed=SEED).clear else "no"


def in_folds(corpus: Corpus, pools: Pools, said: Sequence[TeacherTarget], sides: Sides = "queries") -> Pools:
    """Return the pools of queries, each scored with what the other folds have taught."""

    def fit(some: Pools, taught: Sequence[TeacherTarget]) -> Any:
        trained = corpus.taught(some, taught, sides=sides)
        return lambda others: corpus.pools(only(corpus.train, {pool.query for pool in others.pools}), trained)

    return cross_fitted_pools(pools, said, fit, seed=SEED)


RATES = ("collection", "teacher", "queries", "learning rate", "dense", "blend", "agreement of dense with blend")


def by_rate(corpus: Corpus, teachers: Sequence[str], rates: Iterable[float]) -> list[tuple[object, ...]]:
    """Return the rows of one collection: differences on the queries to learn from, by learning rate."""
    pools = corpus.pools(corpus.train, corpus.encoder)
    rows: list[tuple[object, ...]] = []
    for rate, teacher in product(rates, teachers):
        corpus.loop = replace(corpus.loop, learning_rate=rate)
        after = in_folds(corpus, pools, said_by(teacher, pools, corpus))
        dense = difference(by_dense(after), by_dense(pools))
        blend = difference(values_of_default(after, NDCG_10), values_of_default(pools, NDCG_10))
        agreement = shown(evaluation_of(pools, after, least=MIN_QUERIES, seed=SEED).agreement)
        rows.append((corpus.name, teacher, len(pools), f"{rate:g}", dense, blend, agreement))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return rows


POISONED = ("collection", "teacher", "bound", "log", "blend", "mean rank of the document", "in the first ten")


def poisoned(corpus: Corpus, size: int, bounds: Sequence[float]) -> list[tuple[object, ...]]:
    """Return the rows of one collection: how far an attacker gets, by the bound of what one document may teach."""
    asked = corpus.pools(corpus.train, corpus.encoder)
    order = np.random.default_rng(SEED).permutation(len(asked))
    honest, rest = asked.some(order[:size]), asked.some(order[size:])
    attacks = {one: rest.some(asked_for(rest, one, size // 9)) for one in wanted(corpus, rest, size // 9)}
    number = np.mean([len(pools) for pools in attacks.values()])
    rows: list[tuple[object, ...]] = []

    def add(teacher: str, bound: object, log: str, given: Sequence[tuple[Pools, str]]) -> None:
        values = np.mean([values_of_default(after, NDCG_10).mean() for after, _ in given])
        ranks = np.array([ranks_of(after, document) for after, document in given])
        shown = (f"{values:.3f}", f"{ranks.mean():.1f}", f"{np.mean(ranks <= 10):.2%}")
        rows.append((corpus.name, teacher, bound, log, *shown))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)

    before = corpus.pools(corpus.test, corpus.encoder)
    add("", "", "nothing learned", [(before, document) for document in attacks])
    for teacher in ("clicks", "blend"):
        for bound in bounds:
            alone = learned(corpus, honest, {}, teacher, bound)
            add(teacher, f"{bound:.0%}", f"{size} honest", [(alone, document) for document in attacks])
            after = [
                (learned(corpus, honest, {document: pools}, teacher, bound), document)
                for document, pools in attacks.items()
            ]
            add(teacher, f"{bound:.0%}", f"and {number:.0f} of the attacker", after)
    return rows


def learned(corpus: Corpus, honest: Pools, attack: Mapping[str, Pools], teacher: str, bound: float) -> Pools:
    """Return the test queries' pools after learning from honest queries, and from those of an attack on a document."""
    pools = [*honest.pools, *chain.from_iterable(pools.pools for pools in attack.values())]
    clicks = dict(clicks_of(honest, corpus)) | {
        pool.query: {document: CLICKS} for document, his in attack.items() for pool in his.pools
    }
    mixed = replace(honest, pools=tuple(pools))
    said = targets(mixed, clicks, allowed=[one for one in TEACHERS if one == teacher])
    return corpus.pools(corpus.test, corpus.taught(mixed, said, max_share=bound))


def wanted(corpus: Corpus, pools: Pools, queries: int) -> list[str]:
    """Return documents that no test query is after, and which many queries have among their candidates."""
    relevant = {one for judged in corpus.test.qrels.values() for one, grade in judged.items() if grade > 0}
    counts = Counter(one for pool in pools.pools for one in pool.documents if one not in relevant)
    often = [one for one, count in counts.items() if count >= queries]
    known = sorted(often if len(often) >= ATTACKED else [one for one, _ in counts.most_common(ATTACKED)])
    return [str(one) for one in np.random.default_rng(SEED).choice(known, ATTACKED, replace=False)]


def asked_for(pools: Pools, document: str, most: int) -> list[int]:
    """Return the places of queries that have a document among their candidates."""
    return [place for place, pool in enumerate(pools.pools) if document in pool.documents][:most]


def ranks_of(pools: Pools, document: str) -> list[int]:
    """Return a document's rank by blend in each pool; behind all others where it is not in it."""
    return [
        1 + int(np.sum(scores > scores[pool.documents.index(document)]))
        if document in pool.documents
        else len(scores) + 1
        for pool, scores in zip(pools.pools, blend_scores(pools), strict=True)
    ]


def parts(name: str, most: int) -> tuple[Collection, Collection]:
    """Return a collection with the queries to learn from, and with those of the test."""
    folder = DATA / name if (DATA / name).is_dir() else Path(name)
    if name not in GENERATED and "train" in splits(folder):
        train, test = load_collection(folder, "train"), load_collection(folder, "test")
    else:
        whole = GENERATED[name](False) if name in GENERATED else load_collection(folder, "test")
        names = np.random.default_rng(SEED).permutation(sorted(whole.queries)).tolist()
        half = {*names[: len(names) // 2]}
        train, test = only(whole, half), only(whole, {*names} - half)
    return train if len(train.queries) <= most else sample(train, most, SEED), sample(test, MAX_TEST, SEED)


def unjudged(pools: Pools) -> Pools:
    """Return pools without judgements."""
    return replace(pools, pools=tuple(replace(pool, grades=pool.grades * 0) for pool in pools.pools))


def difference(ours: Float64, theirs: Float64) -> str:
    """Return the mean difference, bold where its interval leaves out 0."""
    return shown(compared(ours, theirs))


def shown(one: Comparison) -> str:
    """Return a difference, bold where its interval leaves out 0."""
    sure = "**" if one.interval.low > 0 or one.interval.high < 0 else ""
    delta, low, high = (round(value, 3) + 0.0 for value in (one.delta, one.interval.low, one.interval.high))
    return f"{sure}{delta:+.3f}{sure} ({low:+.3f}..{high:+.3f})"


if __name__ == "__main__":
    main()
