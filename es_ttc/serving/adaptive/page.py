"""The page of a search with a strategy: scores for the response, and hits of documents outside the first pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

from es_ttc.errors import EngineError
from es_ttc.reranking.strategies import BudgetedReranker, RerankedList
from es_ttc.serving.adaptive.candidates import CandidateDocuments
from es_ttc.serving.request.section import Section
from es_ttc.serving.rescore.collapse import Group, WindowGroups, collapsed, firsts, window_groups
from es_ttc.serving.rescore.demands import query_of_url
from es_ttc.serving.rescore.page import Ranking, ranking_of
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.vectors.tokens import Float32

_OF_HITS = frozenset(
    {
        "_source", "derived", "docvalue_fields", "ext", "fields", "highlight", "runtime_mappings", "script_fields",
        "seq_no_primary_term", "stored_fields", "timeout", "version",
    }
)  # fmt: skip
_PARAMS_OF_HITS = frozenset(
    {
        "_source", "_source_excludes", "_source_includes", "allow_no_indices", "docvalue_fields", "expand_wildcards",
        "ignore_unavailable", "preference", "routing", "seq_no_primary_term", "stored_fields", "timeout", "version",
    }
)  # fmt: skip
TARGET_PARAMS = frozenset({"allow_no_indices", "expand_wildcards", "ignore_unavailable", "preference", "routing"})
"""URL parameters that affect which documents are searched."""


@dataclass(frozen=True, slots=True)
class RankedHits:
    """The whole first pass and the documents found outside it, in their final order.

    Attributes:
        documents: Numbers of documents, best first.
        scores: ``(n,)`` float32, scores for the response.
        judged: The reranker's score of each reranked document, for the response, before scores are combined.
    """

    documents: Sequence[int]
    scores: Float32
    judged: Mapping[int, float]


def rank_hits(
    reranked: RerankedList,
    reranker: BudgetedReranker,
    documents: CandidateDocuments,
    found: int,
    section: Section,
    pinned: int = 0,
) -> RankedHits:
    """Put the reranked documents before the rest of the first pass.

    Pinned documents stay on top. Then come the reranked documents, by score; then the other documents of the window,
    then the rest of the first pass. A document from outside that was not reranked is left out.
    """
    judged = [document for document in reranked.documents[: reranked.judged] if document >= pinned]
    places = {*range(pinned), *judged}
    order = [*range(pinned), *judged, *(document for document in range(found) if document not in places)]
    first = np.array([documents.hits[document].get("_score") or 0.0 for document in order], np.float32)
    values = np.zeros(len(order), np.float32)
    shown = displayed_scores([reranker.score(document) for document in judged])
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

    Args:
        outcome: The ranked documents; None if the order of the first pass stays.
        groups: The group of each document by number; None without collapse.
        hits: The first pass.
        fetch: Number of requested hits.
    """
    order = list(range(len(hits))) if outcome is None else list(outcome.documents)
    if groups is None:
        return order, None
    first_pass = np.array([hit.get("_score") or 0.0 for hit in hits], np.float32)
    own = groups[: len(hits)]
    if outcome is None:
        return firsts(own).tolist(), window_groups(own, fetch, first_pass[:0], None)
    ranking = collapsed(Ranking(np.array(order, np.intp), outcome.scores), groups)
    beyond = [groups[document] for document in order if document >= len(hits)]
    return ranking.order.tolist(), window_groups(own, fetch, first_pass, ranking, beyond=beyond)


def displayed_scores(scores: Sequence[float | None]) -> Float32:
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


async def add_hits_outside_first_pass(
    page: Sequence[int], documents: CandidateDocuments, found: int, plan: SearchPlan
) -> dict[int, dict[str, Any]]:
    """Return the page's hits by document: those of the first pass, and the others as the request would return them.

    The caller's query is sent too if possible, so that highlights and names of clauses are correct. Deleted documents
    are left out.

    Raises:
        EngineError: The engine returned an error.
        EngineUnavailable: The engine does not answer.
    """
    hits = {document: documents.hits[document] for document in page if document < found}
    outside = [document for document in page if document >= found]
    by_index: dict[str, dict[str, int]] = {}
    for document in outside:
        index, identifier = documents.identity(document)
        by_index.setdefault(index, {})[identifier] = document
    url = dict(plan.params)
    params = urlencode([pair for pair in plan.params if pair[0] in _PARAMS_OF_HITS]).encode()
    query = query_of_url(url) or plan.body.get("query")
    if isinstance(query, Mapping) and "hybrid" in query:
        query = None
    for index, numbers in by_index.items():
        for own_query in (query, None):
            body = {
                **{key: value for key, value in plan.body.items() if key in _OF_HITS},
                "query": documents.matching(index, list(numbers), own_query),
                "size": len(numbers),
                "track_total_hits": False,
            }
            try:
                found_hits = await documents.search([index], body, b"" if "pit" in plan.body else params)
            except EngineError as error:
                if own_query is None or error.upstream_status is None or error.upstream_status >= 500:
                    raise
                continue  # the query is not allowed there: repeat without it
            hits |= {numbers[hit["_id"]]: hit for hit in found_hits if hit["_id"] in numbers}
            break
    return hits
