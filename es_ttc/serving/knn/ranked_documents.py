"""The documents that a retriever has found, as the response displays them: scores, details and the summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.rescorers.base import Feature, Params, Query
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.retrievers.base import Retrieved, Retriever
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.knn.clauses import KnnClause
from es_ttc.serving.knn.engine_search import EngineSearch
from es_ttc.serving.rescore.page import shortest, with_field_name
from es_ttc.serving.search.fallback import ScoringError
from es_ttc.vectors.tokens import Float32


@dataclass(frozen=True, slots=True)
class RetrievalMethod:
    """A retriever with its parameters.

    Attributes:
        retriever: The retriever.
        params: Its parameters.
        tuned: Those parameters that are tuned values, not the request's.
    """

    retriever: Retriever[Any]
    params: Params
    tuned: Mapping[str, Any]


@dataclass(slots=True)
class RetrievalTimings:
    """Milliseconds of each stage; ``search`` contains the method's computations between searches."""

    encode: float = 0.0
    search: float = 0.0
    features: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the timings for a response."""
        return {name: round(getattr(self, name), 2) for name in ("encode", "search", "features")}


@dataclass(frozen=True, slots=True)
class RankedDocuments:
    """Documents found by a method.

    Attributes:
        ids: Index and id, best first; the content hash in place of the id if `named` is false.
        named: Whether documents are identified by their ids.
        scores: Scores, not negative, in descending order.
        details: Details of documents, by index and id.
        summary: The method's part of the summary.
    """

    ids: list[tuple[str, str]]
    named: bool
    scores: list[float]
    details: Mapping[tuple[str, str], dict[str, Any]]
    summary: Mapping[str, Any]


async def only_similar(found: Retrieved, search: EngineSearch, query: Query, minimum: float | None) -> Retrieved:
    """Return documents without those whose pooled vector has a cosine with the query below ``similarity``."""
    if minimum is None or not len(found.documents):
        return found
    known = await search.window(found.documents, frozenset({Feature.POOLED}))
    assert known.window.pooled is not None  # noqa: S101 - required above
    cosines: Float32 = (known.window.pooled @ query.vectors.T).max(axis=1)
    kept = np.isin(found.documents, known.documents[cosines >= minimum])
    details = [detail for detail, keep in zip(found.details, kept, strict=True) if keep] if found.details else ()
    return Retrieved(found.documents[kept], found.scores[kept], details, found.summary)


def ranked_documents(
    found: Retrieved, search: EngineSearch, clause: KnnClause, method: RetrievalMethod
) -> RankedDocuments:
    """Return the documents that a retriever has found, with scores and details for the response.

    Raises:
        ScoringError: The retriever has returned invalid scores.
    """
    name = method.retriever.name
    scores = np.asarray(found.scores, np.float32)
    if len(scores) != len(found.documents) or not np.isfinite(scores).all() or (np.diff(scores) > 0).any():
        raise ScoringError(f"method [{name}] must return one finite score a document, never rising")
    scores = shown_similarity(scores) if method.retriever.similarity else scores
    if (scores < 0).any():
        raise ScoringError(f"method [{name}] returned a negative score, which engines do not allow")
    ids = [search.ids[document] for document in found.documents]
    details: dict[tuple[str, str], dict[str, Any]] = {}
    if search.details:
        own: Sequence[Mapping[str, Any]] = found.details or [{} for _ in ids]
        for rank, (document, identity, detail) in enumerate(zip(found.documents.tolist(), ids, own, strict=True), 1):
            named = with_field_name(dict(detail), search.fields.get(document, ()))
            details[identity] = {"retrieval_rank": rank, **named}
    boosted = scores * np.float32(clause.boost)
    summary = {**found.summary, **({"stale": search.stale} if search.stale else {})}
    if search.skipped:
        summary["skipped"] = skip_reasons.summary(search.skipped.values())
    return RankedDocuments(ids, search.named, [shortest(score) for score in boosted], details, summary)


def retrieval_summary(
    method: RetrievalMethod, parts: Mapping[str, Any], encoder: str, timings: RetrievalTimings, *, applied: bool
) -> dict[str, Any]:
    """Return the summary of a retrieval for the response.

    Args:
        method: The method.
        parts: What depends on the outcome: the number of documents, or the reason for the fallback.
        encoder: Identity of the encoder; empty if there is none.
        timings: Milliseconds of each stage.
        applied: Whether the method was applied.
    """
    known = {"encoder": encoder} if encoder else {}
    tuned = {"tuned": dict(method.tuned)} if method.tuned else {}
    return {"method": method.retriever.name, "applied": applied, **parts, **known, **tuned, "took": timings.as_dict()}
