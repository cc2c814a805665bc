"""First passes in memory, over the whole corpus: by words, by vectors, and by both."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.features import CorpusFeatures
from es_ttc.lab.evaluation.methods import Bm25Params, EvaluatedMethod, FusionParams
from es_ttc.lab.evaluation.rankings import Ranking, ReportStage, fuse_rankings, top
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.similarity import shown_similarity

QUERY_BLOCK = 256  # queries of one matrix product

T = TypeVar("T")
TimedRankings = tuple[list[Ranking], NDArray[np.float64]]  # a ranking a query, and the seconds that each took


@dataclass
class FirstPasses:
    """The rankings of the first-pass methods, each made once; `reach` is the number of documents of a ranking."""

    texts: Sequence[str]
    queries: Sequence[str]
    methods: Mapping[str, EvaluatedMethod]
    features: CorpusFeatures | None
    encoded_queries: Sequence[Query]
    reach: int
    _rankings: dict[EvaluatedMethod, TimedRankings] = field(default_factory=dict)
    _indexes: dict[tuple[float, float], Bm25] = field(default_factory=dict)

    def of(self, method: EvaluatedMethod, progress: ReportStage) -> TimedRankings:
        """Return a method's rankings of all queries."""
        if method not in self._rankings:
            match method.params:
                case Bm25Params():
                    self._rankings[method] = self._bm25(method.params, progress)
                case FusionParams():
                    self._rankings[method] = self._hybrid(method.params, progress)
                case _:
                    self._rankings[method] = self._dense(progress)
        return self._rankings[method]

    def named(self, name: str, progress: ReportStage) -> TimedRankings:
        """Return the rankings of a method by its name."""
        return self.of(self.methods[name], progress)

    def word_scores(self, text: str) -> NDArray[np.float32]:
        """Return BM25's scores of all documents, ``(n,)``."""
        params = self.methods["bm25"].params
        assert isinstance(params, Bm25Params)  # noqa: S101 - its own parameters
        return self._index(params).scores(text)

    def encoded(self) -> CorpusFeatures:
        """Return the features; raise an error if documents or queries were not encoded."""
        if self.features is None or len(self.encoded_queries) != len(self.queries):
            raise ConfigurationError("this method needs the collection's features, and none were given")
        return self.features

    def _index(self, params: Bm25Params) -> Bm25:
        if (params.k1, params.b) not in self._indexes:
            self._indexes[params.k1, params.b] = Bm25(self.texts, k1=params.k1, b=params.b)
        return self._indexes[params.k1, params.b]

    def _bm25(self, params: Bm25Params, progress: ReportStage) -> TimedRankings:
        index = self._index(params)

        def search(text: str) -> Ranking:
            ranking = top(index.scores(text), self.reach)
            matching = int(np.sum(ranking.scores > 0))
            return Ranking(ranking.documents[:matching], ranking.scores[:matching])

        return timed(search, self.queries, "bm25", progress)

    def _dense(self, progress: ReportStage) -> TimedRankings:
        features = self.encoded()
        vectors = np.stack([query.vectors[0] for query in self.encoded_queries])
        reach = min(self.reach, int(features.present.sum()))
        rankings: list[Ranking] = []
        start = time.perf_counter()
        for block in range(0, len(vectors), QUERY_BLOCK):
            scores = shown_similarity(vectors[block : block + QUERY_BLOCK] @ features.pooled.T)
            scores[:, ~features.present] = -np.inf  # no kNN search returns a document without a vector
            rankings += [top(row, reach) for row in scores]
            progress("dense", len(rankings), len(vectors))
        share = (time.perf_counter() - start) / len(rankings)
        return rankings, np.full(len(rankings), share)

    def _hybrid(self, params: FusionParams, progress: ReportStage) -> TimedRankings:
        parts = [self.named(name, progress) for name in ("bm25", "dense")]
        lists = [[ranking.documents[: self.reach].tolist() for ranking in rankings] for rankings, _ in parts]

        def fuse(rankings: Sequence[Sequence[int]]) -> Ranking:
            fused = fuse_rankings(rankings, params.k)[: self.reach]
            documents = np.array([document for document, _ in fused], dtype=np.intp)
            return Ranking(documents, np.array([score for _, score in fused], dtype=np.float32))

        rankings, seconds = timed(fuse, list(zip(*lists, strict=True)), "hybrid", progress)
        return rankings, seconds + sum(spent for _, spent in parts)


def timed(answer: Callable[[T], Ranking], queries: Iterable[T], name: str, progress: ReportStage) -> TimedRankings:
    """Return the answers to queries, one after the other, with the time of each."""
    rankings: list[Ranking] = []
    seconds: list[float] = []
    inputs = list(queries)
    for query in inputs:
        start = time.perf_counter()
        rankings.append(answer(query))
        seconds.append(time.perf_counter() - start)
        progress(name, len(rankings), len(inputs))
    return rankings, np.array(seconds)
