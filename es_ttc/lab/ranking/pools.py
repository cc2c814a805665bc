"""The signals of judged queries, scored once: what weights and trees are fitted to.

For each query the pool is what blend would score: the first pass's window and the documents nearest to the query. Its
scores are a matrix of documents and signals. A trial of weights is then a product of matrices, not a search.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.validation import did_you_mean
from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.datasets import Collection, field_values
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import resolve_one
from es_ttc.lab.evaluation.plan import EvaluationPlan, open_searcher
from es_ttc.lab.evaluation.rankings import ReportStage, silent
from es_ttc.lab.ranking.graded import Grades
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.blend.signals import SIGNALS, SignalName, read_by, signal_matrix
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust
from es_ttc.vectors.codecs import StoredCodec
from es_ttc.vectors.tokens import Float32, Float64


@dataclass(frozen=True, slots=True)
class Pool:
    """One query's documents with their signals and judgements."""

    query: str
    documents: tuple[str, ...]  # ids of the k documents: those of the first pass, then those that joined
    scores: Float32  # (k, s) float32, a signal's scores in each column; NaN where a document does not have it
    trust: Trust  # how far its signals are trusted, from which blend's default weights come
    grades: Grades  # (k,) each document's grade; 0 where it is not judged
    behind: Grades  # (b,) grades of the documents that are ranked behind the pool, in their order
    judged: Grades  # grades of all judged documents, in the pool or not
    # By numeric field (k,) values; NaN where a document has none
    numbers: Mapping[str, Float64] = field(default_factory=dict)
    query_vector: Float32 | None = None  # (d,) float32 unit row; None where pools were kept without
    # For each document its (d,) pooled vector; None where it has none; empty as above
    vectors: Sequence[Float32 | None] = ()


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a collection's queries."""

    data: str
    split: str
    encoder: str
    signals: tuple[SignalName, ...]
    pools: tuple[Pool, ...] = field(repr=False)  # asyncio formats the result of a task when a runner ends
    settings: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.pools)

    def some(self, places: Sequence[int] | NDArray[np.intp]) -> "Pools":
        """Return the pools of some queries."""
        return replace(self, pools=tuple(self.pools[int(place)] for place in places))

    def default_weights(self) -> Float32:
        """Return blend's default weight of each signal in each pool, ``(q, s)``."""
        rows = [pool.trust.weights(self.signals) for pool in self.pools]
        return np.array([[row[name] for name in self.signals] for row in rows], np.float32)

    def of(self, signals: Sequence[SignalName]) -> "Pools":
        """Return the pools with some of their signals."""
        if tuple(signals) == self.signals:
            return self
        columns = [self.signals.index(name) for name in signals]
        pools = tuple(replace(pool, scores=pool.scores[:, columns]) for pool in self.pools)
        return replace(self, signals=tuple(signals), pools=pools)


def signal_names(given: str | None) -> tuple[SignalName, ...]:
    """Return signals by names that commas separate, in the order of :data:`SIGNALS`; the default ones for None."""
    if given is None:
        return DEFAULT_SIGNALS
    wanted = [name.strip() for name in given.split(",") if name.strip()]
    for name in wanted:
        if name not in SIGNALS:
            raise InvalidRequest(f"unknown signal [{name}]{did_you_mean(name, tuple(SIGNALS))}")
    if len(set(wanted)) < 2:
        raise InvalidRequest("[signals] names fewer than two signals: there is nothing to weigh")
    return tuple(name for name in SIGNALS if name in wanted)


def collect(
    collection: Collection,
    encoder: Encoder,
    signals: Sequence[SignalName] = DEFAULT_SIGNALS,
    *,
    window: int | None = 100,
    max_tokens: int = 1024,
    codec: StoredCodec = "float16",
    fields: Sequence[str] = (),
    progress: ReportStage = silent,
) -> Pools:
    """Encode a collection and score every signal once for each query's pool."""
    for name in fields:
        field_values(collection, name)
    signals = [name for name in SIGNALS if name in signals or name in DEFAULT_SIGNALS]
    method = resolve_one("blend", {"signals": dict.fromkeys(signals, 1)})
    plan = EvaluationPlan((method,), first_pass="bm25", window=window, max_tokens=max_tokens, codec=codec)
    with open_searcher(plan, collection, encoder, progress) as (searcher, _, _):
        assert isinstance(searcher, MemorySearcher)  # noqa: S101 - the plan has no engine
        return pools_of(
            collection, searcher, signals, encoder.identity.key, plan.settings(), fields=fields, progress=progress
        )


def merged_pools(every: Sequence[Pools]) -> Pools:
    """Return the pools of several collections as one."""
    first, *others = every
    if not others:
        return first
    return replace(
        first,
        data="+".join(one.data for one in every),
        pools=tuple(pool for one in every for pool in one.pools),
    )


def pools_of(
    collection: Collection,
    searcher: MemorySearcher,
    signals: Sequence[SignalName],
    encoder: str,
    settings: Mapping[str, Any],
    *,
    fields: Sequence[str] = (),
    progress: ReportStage = silent,
) -> Pools:
    """Score every signal once for each query's pool; see :func:`collect`."""
    needs = read_by(signals) | {Feature.NORMS}
    ids = [document.id for document in collection.documents]
    pools = []
    for name, scored in zip(collection.queries, searcher.windows(needs, fields, progress), strict=True):
        query, window = scored.query, scored.window
        pooled = {*window.ids}
        behind = [document for place in scored.first.documents if (document := ids[place]) not in pooled]
        matrix, trust = signal_matrix(signals, query, window), Trust.of(query, window)
        pools.append(window_pool(name, query, window, matrix, trust, collection.qrels[name], behind))
    return Pools(collection.name, collection.split, encoder, tuple(signals), tuple(pools), settings)


def pool_grades(
    documents: Sequence[str], judged: Mapping[str, int], behind: Sequence[str] = ()
) -> tuple[Grades, Grades, Grades]:
    """Return `grades`, `behind` and `judged` of a pool."""
    pooled, others = (np.array([judged.get(name, 0) for name in names], np.int64) for names in (documents, behind))
    return pooled, others, np.array(sorted(judged.values(), reverse=True), np.int64)


def window_pool(
    name: str,
    query: Query,
    window: Window,
    matrix: Float32,
    trust: Trust,
    judged: Mapping[str, int],
    behind: Sequence[str] = (),
) -> Pool:
    """Return the pool of a query's window with the ``(k, s)`` scores of its signals."""
    return Pool(
        name,
        tuple(window.ids),
        matrix,
        trust,
        *pool_grades(window.ids, judged, behind),
        numbers=window.numbers,
        query_vector=query.vectors[0],
        vectors=() if window.pooled is None else list(window.pooled),
    )
