"""Strategies on a collection in memory: its neighbour graph, and a rescorer as the reranker."""

from collections.abc import Sequence

import numpy as np

from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.lab.evaluation.features import CorpusFeatures
from es_ttc.lab.evaluation.methods import EvaluatedMethod, strategy_reranker
from es_ttc.lab.evaluation.rankings import Positions, Ranking
from es_ttc.reranking.graph import NeighbourGraph, build
from es_ttc.reranking.strategies import RerankedList, StepLimit, StrategyParams, budgeted_reranker
from es_ttc.reranking.strategies.methods import RrParams
from es_ttc.reranking.strategies.retrieve_and_rerank import mixed
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.registry import parse_params
from es_ttc.rescorers.similarity import shown_similarity


class MemoryGraph:
    """The neighbour graph of a collection's documents, by their positions."""

    def __init__(self, features: CorpusFeatures) -> None:
        self._known = np.flatnonzero(features.present)
        self._place = np.full(len(features.present), -1, np.intp)
        self._place[self._known] = np.arange(len(self._known))
        self._graph: NeighbourGraph = build(features.pooled[self._known])

    def neighbours(self, document: int) -> list[int]:
        """Return a document's neighbours, nearest first."""
        place = int(self._place[document])
        return self._known[self._graph.of(place)].tolist() if place >= 0 else []


class _RequestGraph:
    """The graph as one request reads it: so many neighbours of a document, so many steps from the first pass."""

    def __init__(self, graph: MemoryGraph, params: StrategyParams) -> None:
        self._graph = graph
        self._steps = StepLimit(getattr(params, "depth", 0))
        self._fan_out = getattr(params, "fan_out", 0)

    async def of(self, documents: Sequence[int]) -> list[list[int]]:
        found = [self._graph.neighbours(document)[: self._fan_out] for document in documents]
        return self._steps.within(documents, found)

    def expect(self, documents: Sequence[int]) -> None:
        pass  # the graph is in memory


class InMemoryReranker:
    """A rescorer as the reranker of one query."""

    def __init__(self, features: CorpusFeatures, query: Query, method: EvaluatedMethod) -> None:
        self._features = features
        self._query = query
        self._rescorer = strategy_reranker(method)
        assert isinstance(method.params, StrategyParams)  # noqa: S101 - of every strategy
        self._params = parse_params(self._rescorer, method.params.reranker_params)
        self._read = self._rescorer.needs(self._params) | self._rescorer.wants

    async def scores(self, documents: Sequence[int]) -> list[float]:
        """Return the documents' scores as in a response of the gateway; 0 for one without features."""
        places = np.asarray(documents, np.intp)
        known = self._features.present[places]
        found = np.zeros(len(places), np.float32)
        if known.any():
            window = self._features.window(places[known], np.zeros(int(known.sum()), np.float32), self._read)
            found[known] = shown_similarity(self._rescorer.score(self._query, window, self._params))
        return [float(score) for score in found]


def walk_and_rerank(
    method: EvaluatedMethod,
    first: Ranking,
    window: Positions,
    graph: MemoryGraph,
    features: CorpusFeatures,
    query: Query,
) -> Ranking:
    """Return one query's ranking by a strategy."""
    strategy, params = method.strategy, method.params
    assert strategy is not None  # noqa: S101 - checked by the caller
    assert isinstance(params, StrategyParams)  # noqa: S101
    reranker = budgeted_reranker(strategy.name, params, InMemoryReranker(features, query, method))

    async def nearness(documents: Sequence[int]) -> list[float]:
        near: list[float] = (features.pooled[np.asarray(documents, np.intp)] @ query.vectors[0]).tolist()
        return near

    async def run() -> RerankedList:
        return await strategy.run(params, window.tolist(), _RequestGraph(graph, params), reranker, nearness)

    with InterruptibleRunner() as runner:
        found = runner.run(run())
    if found.failure is not None:
        raise found.failure
    judged = np.asarray(found.documents[: found.judged], np.intp)
    scores = [reranker.score(document) for document in judged.tolist()]
    values = np.array([1 / place if score is None else score for place, score in enumerate(scores, 1)], np.float32)
    rest = first.documents[~np.isin(first.documents, judged)]
    if isinstance(params, RrParams) and params.first_pass_weight:
        before = dict(zip(first.documents.tolist(), first.scores.tolist(), strict=False))
        own = np.array([before.get(document, 0.0) for document in judged.tolist()], np.float32)
        values = mixed(values, own, params.first_pass_weight)
        order = np.argsort(-values, kind="stable")
        judged, values = judged[order], values[order]
    return Ranking(np.concatenate([judged, rest]), values)
