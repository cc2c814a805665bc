"""What several items of one `rescore` list give: nDCG@10, and how alike the first ten documents are.

    python -m benchmarks.cascade_quality

In memory, over windows of 100 with as many nearest documents: blend, then a reranker over its first 20, then MMR over
the first ten. The reranker is a **simulation**: it knows the judgements and puts a share of pairs in the wrong order.
MMR's relevance is the cosine with the query or the score before it; its lambda is set, not tuned.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from benchmarks.common import heading, table
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.lab.evaluation.bootstrap import compare, resampled_means
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.methods import resolve
from es_ttc.lab.evaluation.metrics import score
from es_ttc.lab.evaluation.plan import Plan, opened
from es_ttc.lab.evaluation.searcher import silent
from es_ttc.lab.evaluation.simulated_reranker import SimulatedReranker
from es_ttc.rescorers.mmr import greedy, scaled
from es_ttc.settings import Settings
from es_ttc.vectors.tokens import Float32

DATA = Path(__file__).parents[2] / "shared" / "data"
COLLECTIONS = ("cranfield", "scifact")
RERANKED, VARIED = 20, 10
TRADE_OFF = 0.3
Order = Mapping[str, Sequence[str]]
"""The ids of each query's documents, best first."""
Scores = Mapping[str, Float32]
"""The scores of each query's documents, in their order."""


@click.command()
@click.option("--collection", "names", multiple=True, type=click.Choice(COLLECTIONS), help="Some of the collections.")
def main(names: tuple[str, ...]) -> None:
    """Print the table."""
    collections = [load_collection(DATA / name) for name in names or COLLECTIONS]
    data = ", ".join(f"{one.name} ({len(one.queries)} queries)" for one in collections)
    print(heading("Several items", data=f"{data}; all-MiniLM-L6-v2, lambda of MMR {TRADE_OFF}"))
    columns = ("collection", "items", "error rate", "nDCG@10", "against blend", "mean cosine of the first ten")
    print(table(columns, [row for one in collections for row in _rows(one)]))


def _rows(collection: Collection) -> list[list[str]]:
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder("minilm", cache_dir=cache), cache / "encodings")
    methods = resolve(["blend"])
    with opened(Plan(methods), collection, encoder, silent) as (searcher, _, _):
        run, vectors = searcher.rank(methods[0]), searcher.vectors
    assert vectors is not None
    vectors_of = vectors
    encoded = encoder.encode(list(collection.queries.values()), role="query", tokens=False).pooled
    queries = dict(zip(collection.queries, encoded, strict=True))

    def varied(order: Order, relevance: Callable[[str, Sequence[str], Float32], Float32]) -> dict[str, list[str]]:
        new = {}
        for query, documents in order.items():
            head = [one for one in documents[:VARIED] if one in vectors_of]
            pooled = np.stack([vectors_of[one] for one in head])
            picked, _ = greedy(relevance(query, head, pooled), pooled, TRADE_OFF, VARIED)
            rest = [one for one in documents if one not in head]
            new[query] = [*(head[place] for place in picked.tolist()), *rest]
        return new

    def by_cosine(query: str, _head: Sequence[str], pooled: Float32) -> Float32:
        cosines: Float32 = pooled @ queries[query]
        return cosines

    def by_score(scores: Scores, order: Order) -> Callable[[str, Sequence[str], Float32], Float32]:
        def relevance(query: str, head: Sequence[str], _pooled: Float32) -> Float32:
            known = dict(zip(order[query], scores[query].tolist(), strict=False))
            return scaled(np.array([known[one] for one in head], np.float32))

        return relevance

    steps: list[tuple[str, str, Order]] = [("blend", "", run.rankings)]
    steps.append(("blend>mmr", "", varied(run.rankings, by_cosine)))
    steps.append(("blend>mmr, by score", "", varied(run.rankings, by_score(run.scores, run.rankings))))
    for rate in (0.05, 0.2):
        judged, scores = _judged(collection, run.rankings, rate)
        steps.append(("blend>rr", str(rate), judged))
        steps.append(("blend>rr>mmr", str(rate), varied(judged, by_cosine)))
        steps.append(("blend>rr>mmr, by score", str(rate), varied(judged, by_score(scores, judged))))
    scored = [score(collection.qrels, order, k=10, vectors=vectors).values for _, _, order in steps]
    values = [one["ndcg@10"] for one in scored]
    means = resampled_means(np.stack(values)).T
    rows = []
    for number, (name, rate_shown, _) in enumerate(steps):
        versus = ""
        if number:
            found = compare(values[number], values[0], means[number], means[0])
            versus = f"{found.delta:+.3f} ({found.interval.low:+.3f} to {found.interval.high:+.3f})"
        alike = scored[number]["ils@10"].mean()
        rows.append([collection.name, name, rate_shown, f"{values[number].mean():.3f}", versus, f"{alike:.3f}"])
    return rows


def _judged(collection: Collection, order: Order, rate: float) -> tuple[dict[str, list[str]], dict[str, Float32]]:
    """Return the rankings with their first documents in the order of a simulated reranker, and its scores."""
    new, given = {}, {}
    for query, documents in order.items():
        head = documents[:RERANKED]
        reranker = SimulatedReranker(query, collection.qrels.get(query, {}), head, rate)
        found = np.array(asyncio.run(_scores(reranker, len(head))), np.float32)
        best = np.argsort(-found, kind="stable")
        new[query] = [*(head[place] for place in best.tolist()), *documents[RERANKED:]]
        given[query] = found[best]
    return new, given


async def _scores(reranker: SimulatedReranker, count: int) -> Sequence[float]:
    return await reranker.scores(range(count))


if __name__ == "__main__":
    main()
