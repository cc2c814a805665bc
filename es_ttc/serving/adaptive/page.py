"""From a walk to a page: scores as they are shown, and the hits of documents that the first pass did not find."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

from es_ttc.errors import EngineError
from es_ttc.reranking.strategies import BudgetedReranker, RerankedList
from es_ttc.serving.adaptive.candidates import CandidateDocuments
from es_ttc.serving.rescore.collapse import Group, WindowGroups, collapsed, firsts, window_groups
from es_ttc.serving.rescore.page import Ranking, combine, rank
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.search.section import Section
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
DOOR_PARAMS = frozenset({"allow_no_indices", "expand_wildcards", "ignore_unavailable", "preference", "routing"})
"""URL parameters that say which documents a search reaches."""


@dataclass(frozen=True, slots=True)
class RankedHits:
    """A whole first pass and what a walk found beside it, in order.

    Attributes:
        documents: Numbers of documents, best first.
        scores: ``(n,)`` float32, as they are shown.
        judged: For each judged document the reranker's score as it is shown, before scores are combined.
    """

    documents: Sequence[int]
    scores: Float32
    judged: Mapping[int, float]


def rank_hits(
    walk: RerankedList, judge: BudgetedReranker, documents: CandidateDocuments, found: int, section: Section
) -> RankedHits:
    """Put a walk's documents before the rest of the first pass.

    Judged documents come first, by score; then the window's others, then what follows in the first pass. A document
    from outside that was not judged has no place.

    Args:
        walk: The walk.
        judge: Who judged.
        documents: The documents; the first ``found`` are the first pass.
        found: Hits of the first pass.
        section: How scores are combined.
    """
    judged = list(walk.documents[: walk.judged])
    places = set(judged)
    order = [*judged, *(document for document in range(found) if document not in places)]
    first = np.array([documents.hits[document].get("_score") or 0.0 for document in order], np.float32)
    values = np.zeros(len(order), np.float32)
    values[: len(judged)] = displayed_scores([judge.score(document) for document in judged])
    mask = np.arange(len(order)) < len(judged)
    final = combine(
        section.score_mode,
        first,
        values,
        query_weight=section.query_weight,
        rescore_query_weight=section.rescore_query_weight,
    )
    ranking: Ranking = rank(first, final, mask, max(1, len(order)))
    return RankedHits(
        [order[place] for place in ranking.order.tolist()],
        ranking.scores,
        {document: float(value) for document, value in zip(judged, values.tolist(), strict=False)},
    )


def in_groups(
    outcome: RankedHits | None, groups: Sequence[Group] | None, hits: Sequence[Mapping[str, Any]], fetch: int
) -> tuple[list[int], WindowGroups | None]:
    """Return the documents that pages are cut from, the best of every group where a request collapses.

    Args:
        outcome: The walk's documents in order; None where the first pass stands.
        groups: Of all documents of the walk by number; None where nothing is collapsed.
        hits: The first pass.
        fetch: Hits that were asked for.
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
    """Return scores of judged documents, best first, as engines have them: never negative.

    Where the reranker gives none a document shows 1 / rank; where it gives negative ones (a cross-encoder's logits),
    all of the search are shown as 1 / (1 + exp(-score)), in the same order.
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
    """Return the page's hits by document; those of the first pass as they are, the others read as the caller asked.

    The caller's own query goes along where it may, so that highlights and names of clauses are as they would be. A
    document that has gone meanwhile is left out.

    Raises:
        EngineError: The engine refused.
        EngineUnavailable: It does not answer.
    """
    hits = {document: documents.hits[document] for document in page if document < found}
    outside = [document for document in page if document >= found]
    by_index: dict[str, dict[str, int]] = {}
    for document in outside:
        index, identifier = documents.identity(document)
        by_index.setdefault(index, {})[identifier] = document
    url = dict(plan.params)
    params = urlencode([pair for pair in plan.params if pair[0] in _PARAMS_OF_HITS]).encode()
    query = plan.body.get("query") if "q" not in url else {"query_string": {"query": url["q"]}}
    if isinstance(query, Mapping) and "hybrid" in query:
        query = None
    for index, numbers in by_index.items():
        for told in (query, None):
            body = {
                **{key: value for key, value in plan.body.items() if key in _OF_HITS},
                "query": documents.matching(index, list(numbers), told),
                "size": len(numbers),
                "track_total_hits": False,
            }
            try:
                answered = await documents.ask([index], body, b"" if "pit" in plan.body else params)
            except EngineError as error:
                if told is None or error.upstream_status is None or error.upstream_status >= 500:
                    raise
                continue  # the query cannot stand there: without it, then
            hits |= {numbers[hit["_id"]]: hit for hit in answered if hit["_id"] in numbers}
            break
    return hits
