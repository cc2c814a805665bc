"""The page of a search with a strategy: scores for the response, and hits of documents outside the first pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

from es_ttc.errors import EngineError
from es_ttc.reranking.strategies import BudgetedReranker, RerankedList
from es_ttc.reranking.strategies.retrieve_and_rerank import mixed
from es_ttc.serving.plan.bodies import OF_HITS
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.request.section import Section
from es_ttc.serving.rescore.collapse import Group, WindowGroups, collapsed, firsts, window_groups
from es_ttc.serving.rescore.ranking import OrderedScores, ranking_of
from es_ttc.serving.strategies.walk import WalkDocuments
from es_ttc.vectors.tokens import Float32

_OF_HITS = OF_HITS | {"derived", "ext", "runtime_mappings", "stored_fields", "timeout"}
TARGET_PARAMS = frozenset({"allow_no_indices", "expand_wildcards", "ignore_unavailable", "preference", "routing"})
"""URL parameters that affect which documents are searched."""
_PARAMS_OF_HITS = TARGET_PARAMS | {
    "_source", "_source_excludes", "_source_includes", "seq_no_primary_term", "stored_fields", "timeout", "version",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RankedHits:
    """The whole first pass and the documents found outside it, in their final order."""

    documents: Sequence[int]
    scores: Float32  # for the response
    judged: Mapping[int, float]  # the reranker's own score of each reranked document, for the response


def rank_hits(
    reranked: RerankedList,
    reranker: BudgetedReranker,
    documents: WalkDocuments,
    section: Section,
    pinned: int = 0,
    first_pass_weight: float = 0,
) -> RankedHits:
    """Put the reranked documents before the rest of the first pass.

    With a weight of the first pass they are in the order of both scores; see :func:`mixed`.

    Pinned documents stay on top. Then come the reranked documents, by score; then the other documents of the window,
    then the rest of the first pass. A document from outside that was not reranked is left out.
    """
    judged = [document for document in reranked.documents[: reranked.judged] if document >= pinned]
    places = {*range(pinned), *judged}
    first_pass = range(len(documents.first_pass))
    order = [*range(pinned), *judged, *(document for document in first_pass if document not in places)]
    first = np.array([documents.hits[document].get("_score") or 0.0 for document in order], np.float32)
    values = np.zeros(len(order), np.float32)
    scores = [reranker.score(document) for document in judged]
    if first_pass_weight:
        shown = mixed(np.array(scores, np.float32), first[pinned : pinned + len(judged)], first_pass_weight)
    else:
        shown = _displayed(scores)
    values[pinned : pinned + len(judged)] = shown
    mask = (np.arange(len(order)) >= pinned) & (np.arange(len(order)) < pinned + len(judged))
    ranking = ranking_of(section, first, values, mask, pinned)
    return RankedHits(
        [order[place] for place in ranking.order.tolist()],
        ranking.scores,
        {document: float(value) for document, value in zip(judged, shown.tolist(), strict=True)},
    )


def in_groups(
    outcome: RankedHits | None, groups: Sequence[Group] | None, hits: Sequence[Mapping[str, Any]], fetch: int
) -> tuple[list[int], WindowGroups | None]:
    """Return the documents that pages are cut from: with collapse, the best of every group.

    Without an outcome the order of the first pass, `hits` of which `fetch` were requested, stays.
    """
    order = list(range(len(hits))) if outcome is None else list(outcome.documents)
    if groups is None:
        return order, None
    first_pass = np.array([hit.get("_score") or 0.0 for hit in hits], np.float32)
    own = groups[: len(hits)]
    if outcome is None:
        return firsts(own).tolist(), window_groups(own, fetch, first_pass[:0], None)
    ranking = collapsed(OrderedScores(np.array(order, np.intp), outcome.scores), groups)
    beyond = [groups[document] for document in order if document >= len(hits)]
    return ranking.order.tolist(), window_groups(own, fetch, first_pass, ranking, beyond=beyond)


async def add_hits_outside_first_pass(
    page: Sequence[int], documents: WalkDocuments, plan: SearchPlan
) -> dict[int, dict[str, Any]]:
    """Return the page's hits by document: those of the first pass, and the others as the request would return them.

    The caller's query is sent too if possible, so that highlights and names of clauses are correct. Deleted documents
    are left out.
    """
    of_first_pass = len(documents.first_pass)
    hits = {document: documents.hits[document] for document in page if document < of_first_pass}
    by_index: dict[str, dict[str, int]] = {}
    for document in page:
        if document >= of_first_pass:
            index, identifier = documents.identity(document)
            by_index.setdefault(index, {})[identifier] = document
    params = urlencode([pair for pair in plan.params if pair[0] in _PARAMS_OF_HITS]).encode()
    parts = {key: value for key, value in plan.body.items() if key in _OF_HITS}
    query = plan.body.get("query")
    if isinstance(query, Mapping) and "hybrid" in query:
        query = None
    for index, numbers in by_index.items():
        for own_query in (query, None):
            body = {**parts, **documents.matching(index, list(numbers), own_query)}
            try:
                outside = await documents.search(index, body, b"" if "pit" in plan.body else params)
            except EngineError as error:
                if own_query is None or error.upstream_status is None or error.upstream_status >= 500:
                    raise
                continue  # the query is not allowed there: repeat without it
            hits |= {numbers[hit["_id"]]: hit for hit in outside if hit["_id"] in numbers}
            break
    return hits


def _displayed(scores: Sequence[float | None]) -> Float32:
    """Return the scores of reranked documents, best first, for the response: never negative.

    If the reranker returns none, a document gets 1 / rank. If it returns negative ones (a cross-encoder's logits), all
    scores of the search become 1 / (1 + exp(-score)), in the same order.
    """
    if any(score is None for score in scores):
        return (1 / np.arange(1, len(scores) + 1)).astype(np.float32)
    values = np.array(scores, np.float64)
    if (values < 0).any():
        values = 1 / (1 + np.exp(-np.clip(values, -80, 80)))
    return values.astype(np.float32)
