"""Spectral Retrieval of the whole corpus: passages found by kNN, then every document found scored in full."""

import asyncio
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.spectral import SpectralParams, SpectralRescorer
from es_ttc.retrievers.base import Documents, NearestDocuments, Retrieved, Search, Vectors, best, together

_rescorer = SpectralRescorer()


class SpectralRetrieverParams(SpectralParams):
    """What Spectral Retrieval can be told: what spectral rescoring can, and what is searched."""

    through: Literal["spans", "tokens"] = Field(
        "spans",
        description="The passages that are searched: smoothed `spans`, one every few tokens, or single `tokens`; an "
        "index has them if it was made so.",
    )
    pooled: bool = Field(True, description="Whether the documents whose pooled vectors are nearest are scored as well.")
    candidates: int = Field(100, ge=1, le=10_000, description="Documents of each search; at least k.")
    exact: bool = Field(False, description="Compare every vector in place of asking the approximate index.")


class SpectralRetriever:
    """Documents of which one passage answers the query, though the document as a whole is about something else.

    Where pooled vectors choose the window, a document whose pooled vector is far from the query never gets a spectral
    score. Here the documents with the nearest passages are found as well, by the
    engine's kNN over vectors of spans or tokens, and each document of the union gets its exact spectral score: all
    positions, all scales. The passages decide only what is scored.

    With several query texts each is searched; `roles` says how their scores become one.
    """

    name: ClassVar[str] = "spectral"
    Params: ClassVar[type[SpectralRetrieverParams]] = SpectralRetrieverParams
    similarity: ClassVar[bool] = True

    def needs(self, params: SpectralRetrieverParams) -> frozenset[Feature]:
        """The token vectors."""
        return _rescorer.needs(params)

    def searches(self, params: SpectralRetrieverParams) -> frozenset[Vectors]:
        """The passages, and the pooled vectors unless they are left out."""
        return frozenset({Vectors(params.through), *([Vectors.POOLED] if params.pooled else [])})

    async def retrieve(self, query: Query, search: Search, k: int, params: SpectralRetrieverParams) -> Retrieved:
        """Return the documents of the greatest spectral scores among those found."""
        wanted = max(k, params.candidates)
        routes = sorted(self.searches(params))
        answers = await asyncio.gather(
            *(search.nearest(query.vectors, wanted, among=among, exact=params.exact) for among in routes)
        )
        found = dict(zip(routes, map(together, answers), strict=True))
        union = np.unique(np.concatenate([part.documents for part in found.values()]))
        summary = {"candidates": len(union)} | {f"from_{among}": len(part.documents) for among, part in found.items()}
        if not len(union):
            return Retrieved(union, np.empty(0, np.float32), summary=summary)
        known = await search.window(union, self.needs(params), _rescorer.wants)
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
    """Return at which rank each search found a document, 1 for its first."""
    ranks = {}
    for among, part in found.items():
        places = np.flatnonzero(part.documents == document)
        if len(places):
            ranks[f"rank_by_{among}"] = int(places[0]) + 1
    return ranks
