"""Dense retrieval: the documents whose pooled vectors are nearest to the query's. The smallest retriever there is."""

from typing import ClassVar

from pydantic import Field

from es_ttc.rescorers.base import Feature, Params, Query
from es_ttc.retrievers.base import Retrieved, Search, Vectors, together


class DenseRetrieverParams(Params):
    """What dense retrieval can be told."""

    exact: bool = Field(False, description="Compare every document's vector in place of asking the approximate index.")


class DenseRetriever:
    """The engine's own kNN search by the query's pooled vector.

    With several query texts it is one search for each, in one round trip; the greatest of a document's cosines counts.
    """

    name: ClassVar[str] = "dense"
    Params: ClassVar[type[Params]] = DenseRetrieverParams
    similarity: ClassVar[bool] = True

    def needs(self, params: DenseRetrieverParams) -> frozenset[Feature]:  # noqa: ARG002
        """None: the engine's own scores do."""
        return frozenset()

    def searches(self, params: DenseRetrieverParams) -> frozenset[Vectors]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Vectors.POOLED})

    async def retrieve(self, query: Query, search: Search, k: int, params: DenseRetrieverParams) -> Retrieved:
        """Return the nearest documents."""
        found = together(await search.nearest(query.vectors, k, exact=params.exact))
        return Retrieved(found.documents[:k], found.cosines[:k])
