"""The methods in memory, on exact arrays: the same rescorer objects that serve queries, without engine or HTTP."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.lab.evaluation.adaptive_reranking import MemoryGraph, walk_and_rerank
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.datasets import Collection, field_values
from es_ttc.lab.evaluation.features import CorpusFeatures
from es_ttc.lab.evaluation.first_passes import QUERY_BLOCK, FirstPasses, TimedRankings, timed
from es_ttc.lab.evaluation.methods import EvaluatedMethod, FirstPassName
from es_ttc.lab.evaluation.rankings import Positions, Ranking, ReportStage, Run, depth_of, reorder, silent, top
from es_ttc.rescorers.base import Feature, Query, Rescorer, Window
from es_ttc.rescorers.programs.rescorers import ProgramParams, ProgramRescorer
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.retrievers.base import Retriever
from es_ttc.retrievers.memory import MemorySearch
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.tokens import Float32


@dataclass(frozen=True, slots=True)
class QueryWindow:
    """The documents of a query that a rescorer scores, ``(k,)``: the first of a first pass, then those that joined."""

    query: Query
    first: Ranking
    documents: Positions
    window: Window


@dataclass
class MemorySearcher:
    """Answers a collection's queries from arrays.

    Features and queries are left out where no method needs them; `window` None means the whole corpus; as many nearest
    documents as the window, or `candidates`, join the window of a method that takes them.
    """

    collection: Collection
    texts: Sequence[str]
    retrieval: Mapping[str, EvaluatedMethod]
    features: CorpusFeatures | None = None
    queries: Sequence[Query] = ()
    _: KW_ONLY
    first_pass: FirstPassName = "dense"
    window: int | None = 100
    candidates: int | None = None

    def __post_init__(self) -> None:
        self.candidates = self.window if self.candidates is None else self.candidates
        self._depth = depth_of(self.window, self.documents)
        self._reach = self.documents if self.window is None else self._depth
        texts = [*self.collection.queries.values()]
        self._first_passes = FirstPasses(self.texts, texts, self.retrieval, self.features, self.queries, self._reach)
        self._columns: dict[str, NDArray[np.float64]] = {}

    @property
    def documents(self) -> int:
        """Number of documents that are searched."""
        return len(self.collection.documents)

    @property
    def vectors(self) -> Mapping[str, Float32] | None:
        """The documents' pooled vectors by id; see :class:`es_ttc.lab.evaluation.rankings.Searcher`."""
        if self.features is None:
            return None
        features = self.features
        return {features.ids[place]: features.pooled[place] for place in np.flatnonzero(features.present).tolist()}

    def rank(self, method: EvaluatedMethod, progress: ReportStage = silent) -> Run:
        """Return the method's rankings of all queries; see :class:`es_ttc.lab.evaluation.rankings.Searcher`."""
        rankings, seconds = self._rankings(method, progress)
        ids = [document.id for document in self.collection.documents]
        by_query = dict(zip(self.collection.queries, rankings, strict=True))
        return Run(
            {query: [ids[i] for i in ranking.documents[: self._depth]] for query, ranking in by_query.items()},
            {query: ranking.scores[: self._depth] for query, ranking in by_query.items()},
            seconds,
        )

    def windows(
        self, needs: frozenset[Feature], fields: Sequence[str] = (), progress: ReportStage = silent
    ) -> Iterator[QueryWindow]:
        """Yield for each query what a method that joins the nearest documents scores."""
        firsts, nearest, _ = self._first_and_nearest(progress, joins_nearest=True)
        for place, rankings in enumerate(zip(self.queries, firsts, nearest, strict=True), 1):
            yield self._window(*rankings, needs, fields)
            progress("signals", place, len(firsts))

    def _rankings(self, method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        if method.retriever is not None:
            return self._search(method.retriever, method, progress)
        if method.strategy is not None:
            return self._walk(method, progress)
        if method.rescorer is None:
            return self._first_passes.of(method, progress)
        rescorer, params = method.rescorer, method.params
        if self.window is None and isinstance(rescorer, ProgramRescorer) and isinstance(params, ProgramParams):
            return self._program(rescorer, params, progress)
        return self._rescore(rescorer, method, progress)

    def _search(self, retriever: Retriever[Any], method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        features = self._first_passes.encoded()
        matrices = {among: features.matrix(among) for among in method.searches}

        def windows(documents: Positions, wanted: frozenset[Feature]) -> Window:
            return features.window(documents, np.zeros(len(documents), np.float32), wanted)

        with InterruptibleRunner() as runner:

            def retrieve(query: Query) -> Ranking:
                search = MemorySearch(matrices, windows, details=False)
                found = runner.run(retriever.retrieve(query, search, self._depth, method.params))
                scores = shown_similarity(found.scores) if retriever.similarity else found.scores
                return Ranking(found.documents, scores)

            return timed(retrieve, self.queries, method.name, progress)

    def _rescore(self, rescorer: Rescorer[Any], method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        needs = method.needs
        firsts, nearest, spent = self._first_and_nearest(progress, joins_nearest=method.joins_nearest)

        def rescore(rankings: tuple[Query, Ranking, Ranking | None]) -> Ranking:
            scored = self._window(*rankings, needs, method.fields)
            scores = rescorer.score(scored.query, scored.window, method.params)
            return reorder(scored.first, scored.documents, shown_similarity(scores) if rescorer.similarity else scores)

        rankings, seconds = timed(rescore, zip(self.queries, firsts, nearest, strict=True), method.name, progress)
        return rankings, seconds + spent

    def _first_and_nearest(
        self, progress: ReportStage, *, joins_nearest: bool
    ) -> tuple[list[Ranking], Sequence[Ranking | None], NDArray[np.float64]]:
        """Return each query's first pass and the documents nearest to it if they join, and the seconds of both.

        As in the gateway, the nearest documents join what BM25 finds.
        """
        self._first_passes.encoded()
        firsts, spent = self._first_passes.named("bm25" if joins_nearest else self.first_pass, progress)
        if not joins_nearest:
            return firsts, [None] * len(firsts), spent
        nearest, spent_on_vectors = self._first_passes.named("dense", progress)
        return firsts, nearest, spent + spent_on_vectors

    def _window(
        self, query: Query, first: Ranking, nearest: Ranking | None, needs: frozenset[Feature], fields: Sequence[str]
    ) -> QueryWindow:
        features = self._first_passes.encoded()
        if self.window is None:
            first = _with_whole_corpus(first, len(features.ids))
        documents, scores = first.documents[: self.window], first.scores[: self.window]
        in_first_pass = np.ones(len(documents), np.bool_)
        if nearest is not None:
            joined = np.setdiff1d(nearest.documents[: self.candidates], documents, assume_unique=True)
            documents = np.concatenate([documents, joined])
            scores = self._first_passes.word_scores(query.text)[documents]
            in_first_pass = np.arange(len(documents)) < len(documents) - len(joined)
        known = features.present[documents]
        documents = documents[known]
        window = self._features_of(documents, scores[known], needs, fields)
        return QueryWindow(query, first, documents, replace(window, present={Feature.FIRST_PASS: in_first_pass[known]}))

    def _walk(self, method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        features, graph = self._first_passes.encoded(), self._graph
        first_pass, spent = self._first_passes.named(self.first_pass, progress)

        def walk(rankings: tuple[Query, Ranking]) -> Ranking:
            query, first = rankings
            return walk_and_rerank(method, first, first.documents[: self.window], graph, features, query)

        rankings, seconds = timed(walk, zip(self.queries, first_pass, strict=True), method.name, progress)
        return rankings, seconds + spent

    @cached_property
    def _graph(self) -> MemoryGraph:
        return MemoryGraph(self._first_passes.encoded())

    def _program(self, program: ProgramRescorer, params: ProgramParams, progress: ReportStage) -> TimedRankings:
        """Rank the whole corpus as the paper does: many queries at once, words counted over the corpus."""
        features = self._first_passes.encoded()
        known = np.flatnonzero(features.present)
        needs = program.needs(params) | program.wants
        window = self._features_of(known, np.zeros(len(known), np.float32), needs)
        index = Bm25(self.texts) if Feature.FIRST_PASS in needs else None
        rankings: list[Ranking] = []
        start = time.perf_counter()
        for first in range(0, len(self.queries), QUERY_BLOCK):
            block = self.queries[first : first + QUERY_BLOCK]
            lexical = None if index is None else np.stack([index.scores(query.text)[known] for query in block])
            for row in program.batch(block, window, params, lexical):
                ranking = top(row, min(self._reach, len(known)))
                rankings.append(Ranking(known[ranking.documents], ranking.scores))
            progress(program.name, len(rankings), len(self.queries))
        share = (time.perf_counter() - start) / max(1, len(rankings))
        return rankings, np.full(len(rankings), share)

    def _features_of(
        self, documents: Positions, first_pass: Float32, needs: frozenset[Feature], fields: Sequence[str] = ()
    ) -> Window:
        """Return a window; statistics along queries are those of the collection's own queries, as in the paper."""
        window = self._first_passes.encoded().window(documents, first_pass, needs)
        if fields:
            window = replace(window, numbers={name: self._numbers(name)[documents] for name in fields})
        return replace(window, calibration=self._moments) if Feature.CALIBRATION in needs else window

    def _numbers(self, name: str) -> NDArray[np.float64]:
        if name not in self._columns:
            self._columns[name] = field_values(self.collection, name)
        return self._columns[name]

    @cached_property
    def _moments(self) -> Moments:
        return Moments.of(np.stack([query.vectors[0] for query in self.queries]))


def _with_whole_corpus(first: Ranking, size: int) -> Ranking:
    """Append the documents that the first pass did not find, in the corpus's order, with a score of 0."""
    missing = np.setdiff1d(np.arange(size), first.documents)
    scores: Float32 = np.concatenate([first.scores, np.zeros(len(missing), dtype=np.float32)])
    return Ranking(np.concatenate([first.documents, missing]), scores)
