"""The methods in memory, on exact arrays: the same rescorer objects that serve queries, without engine or HTTP."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation.adaptive_reranking import MemoryGraph, rerank
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.datasets import Collection, field_values
from es_ttc.lab.evaluation.features import CorpusFeatures
from es_ttc.lab.evaluation.methods import Bm25Params, EvaluatedMethod, FirstPassName, FusionParams
from es_ttc.lab.evaluation.rankings import (
    Positions,
    Ranking,
    ReportStage,
    Run,
    depth_of,
    reciprocal_rank_fusion,
    reorder,
    silent,
    top,
)
from es_ttc.rescorers.base import Feature, Query, Rescorer, Window
from es_ttc.rescorers.programs.rescorers import ProgramParams, ProgramRescorer
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.retrievers.base import Retriever
from es_ttc.retrievers.memory import MemorySearch
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.tokens import Float32

_BLOCK = 256  # queries of one matrix product

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JoinedWindow:
    """What BM25 finds for a query, with the documents that join it."""

    query: Query
    first: Ranking
    documents: Positions
    window: Window


TimedRankings = tuple[list[Ranking], NDArray[np.float64]]  # a ranking a query, and the seconds that each took


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
        self._found: dict[EvaluatedMethod, TimedRankings] = {}
        self._indexes: dict[tuple[float, float], Bm25] = {}
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
        found = self._found_by(method, progress)
        ids = [document.id for document in self.collection.documents]
        rankings = dict(zip(self.collection.queries, found[0], strict=True))
        return Run(
            {query: [ids[i] for i in ranking.documents[: self._depth]] for query, ranking in rankings.items()},
            {query: ranking.scores[: self._depth] for query, ranking in rankings.items()},
            found[1],
        )

    def _found_by(self, method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        if method.retriever is not None:
            return self._search(method.retriever, method, progress)
        if method.strategy is not None:
            return self._walk(method, progress)
        return self._retrieve(method, progress) if method.rescorer is None else self._rescore(method, progress)

    def _retrieve(self, method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        if method not in self._found:
            match method.params:
                case Bm25Params():
                    self._found[method] = self._bm25(method.params, progress)
                case FusionParams():
                    self._found[method] = self._hybrid(method.params, progress)
                case _:
                    self._found[method] = self._dense(progress)
        return self._found[method]

    def _words(self, params: Bm25Params) -> Bm25:
        if (params.k1, params.b) not in self._indexes:
            self._indexes[params.k1, params.b] = Bm25(self.texts, k1=params.k1, b=params.b)
        return self._indexes[params.k1, params.b]

    def _bm25(self, params: Bm25Params, progress: ReportStage) -> TimedRankings:
        index = self._words(params)

        def search(text: str) -> Ranking:
            ranking = top(index.scores(text), self._reach)
            matching = int(np.sum(ranking.scores > 0))
            return Ranking(ranking.documents[:matching], ranking.scores[:matching])

        return _each(search, self.collection.queries.values(), "bm25", progress)

    def _dense(self, progress: ReportStage) -> TimedRankings:
        features = self._encoded()
        vectors = np.stack([query.vectors[0] for query in self.queries])
        reach = min(self._reach, int(features.present.sum()))
        rankings: list[Ranking] = []
        start = time.perf_counter()
        for block in range(0, len(vectors), _BLOCK):
            scores = shown_similarity(vectors[block : block + _BLOCK] @ features.pooled.T)
            scores[:, ~features.present] = -np.inf  # no kNN search returns a document without a vector
            rankings += [top(row, reach) for row in scores]
            progress("dense", len(rankings), len(vectors))
        share = (time.perf_counter() - start) / len(rankings)
        return rankings, np.full(len(rankings), share)

    def _hybrid(self, params: FusionParams, progress: ReportStage) -> TimedRankings:
        parts = [self._retrieve(self.retrieval[name], progress) for name in ("bm25", "dense")]
        lists = [[ranking.documents[: self._reach].tolist() for ranking in rankings] for rankings, _ in parts]

        def fuse(rankings: Sequence[Sequence[int]]) -> Ranking:
            fused = reciprocal_rank_fusion(rankings, params.k)[: self._reach]
            documents = np.array([document for document, _ in fused], dtype=np.intp)
            return Ranking(documents, np.array([score for _, score in fused], dtype=np.float32))

        rankings, seconds = _each(fuse, list(zip(*lists, strict=True)), "hybrid", progress)
        return rankings, seconds + sum(spent for _, spent in parts)

    def _search(self, retriever: Retriever[Any], method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        features = self._encoded()
        matrices = {among: features.matrix(among) for among in method.searches}

        def windows(documents: Positions, wanted: frozenset[Feature]) -> Window:
            return features.window(documents, np.zeros(len(documents), np.float32), wanted)

        with InterruptibleRunner() as runner:

            def retrieve(query: Query) -> Ranking:
                search = MemorySearch(matrices, windows, details=False)
                found = runner.run(retriever.retrieve(query, search, self._depth, method.params))
                scores = shown_similarity(found.scores) if retriever.similarity else found.scores
                return Ranking(found.documents, scores)

            return _each(retrieve, self.queries, method.name, progress)

    def _rescore(self, method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        assert method.rescorer is not None  # noqa: S101 - rank's branch
        rescorer, params, needs = method.rescorer, method.params, method.needs
        if self.window is None and isinstance(rescorer, ProgramRescorer) and isinstance(params, ProgramParams):
            return self._program(rescorer, params, progress)
        if method.joins_nearest:
            return self._rescore_joined(rescorer, method, progress)
        features = self._encoded()
        first_pass, spent = self._retrieve(self.retrieval[self.first_pass], progress)

        def rescore(pair: tuple[Query, Ranking]) -> Ranking:
            query, first = pair
            if self.window is None:
                first = _with_whole_corpus(first, len(features.ids))
            window, first_scores = first.documents[: self.window], first.scores[: self.window]
            known = features.present[window]
            window = window[known]
            scores = rescorer.score(query, self._given(window, first_scores[known], needs, method.fields), params)
            return reorder(first, window, shown_similarity(scores) if rescorer.similarity else scores)

        rankings, seconds = _each(rescore, zip(self.queries, first_pass, strict=True), method.name, progress)
        return rankings, seconds + spent

    def _rescore_joined(self, rescorer: Rescorer[Any], method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        """Rescore what BM25 finds, joined by as many documents nearest to the query, as the gateway does."""
        needs = method.needs
        parts, spent = self._parts(progress)

        def rescore(part: tuple[Query, Ranking, Ranking]) -> Ranking:
            joined = self._joined(*part, needs, method.fields)
            scores = rescorer.score(joined.query, joined.window, method.params)
            return reorder(joined.first, joined.documents, scores)

        rankings, seconds = _each(rescore, parts, method.name, progress)
        return rankings, seconds + spent

    def joined_windows(
        self, needs: frozenset[Feature], fields: Sequence[str] = (), progress: ReportStage = silent
    ) -> Iterator[JoinedWindow]:
        """Yield for each query what a method that joins the nearest documents scores."""
        parts, _ = self._parts(progress)
        for place, part in enumerate(parts, 1):
            yield self._joined(*part, needs, fields)
            progress("signals", place, len(parts))

    def _parts(self, progress: ReportStage) -> tuple[list[tuple[Query, Ranking, Ranking]], NDArray[np.float64]]:
        """Return each query with what BM25 finds and what is nearest to it, and the seconds that both took."""
        by_words, spent = self._retrieve(self.retrieval["bm25"], progress)
        by_vector, spent_on_vectors = self._retrieve(self.retrieval["dense"], progress)
        return list(zip(self.queries, by_words, by_vector, strict=True)), spent + spent_on_vectors

    def _joined(
        self, query: Query, first: Ranking, nearest: Ranking, needs: frozenset[Feature], fields: Sequence[str]
    ) -> JoinedWindow:
        features = self._encoded()
        if self.window is None:
            first = _with_whole_corpus(first, len(features.ids))
        window = first.documents[: self.window]
        joined = np.setdiff1d(nearest.documents[: self.candidates], window, assume_unique=True)
        documents = np.concatenate([window, joined])
        words = self.retrieval["bm25"].params
        assert isinstance(words, Bm25Params)  # noqa: S101 - its own parameters
        scores = self._words(words).scores(query.text)[documents]
        found = np.arange(len(documents)) < len(window)
        known = features.present[documents]
        documents, scores, found = documents[known], scores[known], found[known]
        given = replace(self._given(documents, scores, needs, fields), present={Feature.FIRST_PASS: found})
        return JoinedWindow(query, first, documents, given)

    def _walk(self, method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        features, graph = self._encoded(), self._graph
        first_pass, spent = self._retrieve(self.retrieval[self.first_pass], progress)

        def walked(pair: tuple[Query, Ranking]) -> Ranking:
            query, first = pair
            return rerank(method, first, first.documents[: self.window], graph, features, query)

        rankings, seconds = _each(walked, zip(self.queries, first_pass, strict=True), method.name, progress)
        return rankings, seconds + spent

    @cached_property
    def _graph(self) -> MemoryGraph:
        return MemoryGraph(self._encoded())

    def _program(self, program: ProgramRescorer, params: ProgramParams, progress: ReportStage) -> TimedRankings:
        """Rank the whole corpus as the paper does: many queries at once, words counted over the corpus."""
        features = self._encoded()
        known = np.flatnonzero(features.present)
        needs = program.needs(params) | program.wants
        window = self._given(known, np.zeros(len(known), np.float32), needs)
        index = Bm25(self.texts) if Feature.FIRST_PASS in needs else None
        rankings: list[Ranking] = []
        start = time.perf_counter()
        for first in range(0, len(self.queries), _BLOCK):
            block = self.queries[first : first + _BLOCK]
            lexical = None if index is None else np.stack([index.scores(query.text)[known] for query in block])
            for row in program.batch(block, window, params, lexical):
                ranking = top(row, min(self._reach, len(known)))
                rankings.append(Ranking(known[ranking.documents], ranking.scores))
            progress(program.name, len(rankings), len(self.queries))
        share = (time.perf_counter() - start) / max(1, len(rankings))
        return rankings, np.full(len(rankings), share)

    def _given(
        self, documents: Positions, first_pass: Float32, needs: frozenset[Feature], fields: Sequence[str] = ()
    ) -> Window:
        """Return a window; statistics along queries are those of the collection's own queries, as in the paper."""
        window = self._encoded().window(documents, first_pass, needs)
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

    def _encoded(self) -> CorpusFeatures:
        if self.features is None or len(self.queries) != len(self.collection.queries):
            raise ConfigurationError("this method needs the collection's features, and none were given")
        return self.features


def _with_whole_corpus(first: Ranking, size: int) -> Ranking:
    """Append the documents that the first pass did not find, in the corpus's order, with a score of 0."""
    missing = np.setdiff1d(np.arange(size), first.documents)
    scores: Float32 = np.concatenate([first.scores, np.zeros(len(missing), dtype=np.float32)])
    return Ranking(np.concatenate([first.documents, missing]), scores)


def _each(answer: Callable[[T], Ranking], queries: Iterable[T], name: str, progress: ReportStage) -> TimedRankings:
    rankings: list[Ranking] = []
    seconds: list[float] = []
    inputs = list(queries)
    for query in inputs:
        start = time.perf_counter()
        rankings.append(answer(query))
        seconds.append(time.perf_counter() - start)
        progress(name, len(rankings), len(inputs))
    return rankings, np.array(seconds)
