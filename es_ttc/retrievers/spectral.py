"""Spectral Retrieval of the whole corpus: find passages by kNN, then score their documents completely."""

import asyncio
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.spectral import SpectralParams, SpectralRescorer
from es_ttc.retrievers.base import Documents, NearestDocuments, Retrieved, Search, Vectors, best, together

_rescorer = SpectralRescorer()


class SpectralRetrieverParams(SpectralParams):
    """Parameters of Spectral Retrieval: those of spectral rescoring, and the searched vectors."""

    through: Literal["spans", "tokens"] = Field(
        "spans",
        description="Searched vectors: smoothed `spans`, one every few tokens, or single `tokens`. The index must have "
        "been created with them.",
    )
    pooled: bool = Field(True, description="Whether the documents with the nearest pooled vectors are scored too.")
    candidates: int = Field(100, ge=1, le=10_000, description="Number of documents of each search; at least k.")
    exact: bool = Field(False, description="Compare every vector, without the approximate index.")


class SpectralRetriever:
    """Find documents of which one passage answers the query, even if the document has another main topic.

    The engine's kNN finds the documents with the nearest passages, by vectors of spans or tokens. Each gets its exact
    spectral score, over all positions and scales.

    Each of several query texts is searched; `roles` says how their scores are combined.
    """

    name: ClassVar[str] = "spectral"
    Params: ClassVar[type[SpectralRetrieverParams]] = SpectralRetrieverParams
    similarity: ClassVar[bool] = True

    def needs(self, params: SpectralRetrieverParams) -> frozenset[Feature]:
        """The token vectors."""
        return _rescorer.needs(params)

    def searches(self, params: SpectralRetrieverParams) -> frozenset[Vectors]:
        """The passages, and the pooled vectors unless they are disabled."""
        return frozenset({Vectors(params.through), *([Vectors.POOLED] if params.pooled else [])})

    async def retrieve(self, query: Query, search: Search, k: int, params: SpectralRetrieverParams) -> Retrieved:
        """Return the documents with the greatest spectral scores among those found."""
        count = max(k, params.candidates)
        routes = sorted(self.searches(params))
        answers = await asyncio.gather(
            *(
                search.nearest(
                    query.vectors if among is Vectors.POOLED else query.of_tokens,
                    count,
                    among=among,
                    exact=params.exact,
                )
                for among in routes
            )
        )
        found = dict(zip(routes, map(together, answers), strict=True))
        union = together([*found.values()]).documents
        summary = {"candidates": len(union)} | {f"from_{among}": len(part.documents) for among, part in found.items()}
        if not len(union):
            return Retrieved(union, np.empty(0, np.float32), summary=summary)
        of_documents = self.needs(params) - {Feature.QUERY_TOKENS}
        known = await search.window(union, of_documents, _rescorer.wants)
        scores = await search.compute(_rescorer.score, query, known.window, params)
        places, kept = best(np.arange(len(known.documents)), scores, k)
        documents = known.documents[places]
        if not search.details:
            return Retrieved(documents, kept, summary=summary)
        evidence = await search.compute(_rescorer.detail, query, _part(known.window, places), params)
        details = [shown | _ranks(found, one) for shown, one in zip(evidence, documents.tolist(), strict=True)]
        return Retrieved(documents, kept, details, summary)


def _part(window: Window, places: Documents) -> Window:
    """Return some of a window's documents; spectral scores do not depend on the others."""
    assert window.tokens is not None  # noqa: S101 - needed
    return Window(
        [window.ids[place] for place in places],
        window.first_pass[places],
        tokens=[window.tokens[place] for place in places],
        norms=None if window.norms is None else [window.norms[place] for place in places],
        offsets=None if window.offsets is None else [window.offsets[place] for place in places],
    )


def _ranks(found: dict[Vectors, NearestDocuments], document: int) -> dict[str, Any]:
    """Return the rank at which each search found a document, 1 for its first."""
    ranks = {}
    for among, part in found.items():
        places = np.flatnonzero(part.documents == document)
        if len(places):
            ranks[f"rank_by_{among}"] = int(places[0]) + 1
    return ranks
