"""Dense retrieval: the documents with the nearest pooled vectors. The smallest retriever."""

from typing import ClassVar

from pydantic import Field

from es_ttc.rescorers.base import Feature, Params, Query
from es_ttc.retrievers.base import Retrieved, Search, Vectors, together


class DenseRetrieverParams(Params):
    """Parameters of dense retrieval."""

    exact: bool = Field(False, description="Compare every document's vector, without the approximate index.")


class DenseRetriever:
    """The engine's own kNN search by the query's pooled vector.

    Several query texts are searched in one round trip; the greatest of a document's cosines counts.
    """

    name: ClassVar[str] = "dense"
    Params: ClassVar[type[Params]] = DenseRetrieverParams
    similarity: ClassVar[bool] = True

    def needs(self, params: DenseRetrieverParams) -> frozenset[Feature]:  # noqa: ARG002
        """None: the engine's own scores are used."""
        return frozenset()

    def searches(self, params: DenseRetrieverParams) -> frozenset[Vectors]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Vectors.POOLED})

    async def retrieve(self, query: Query, search: Search, k: int, params: DenseRetrieverParams) -> Retrieved:
        """Return the nearest documents."""
        found = together(await search.nearest(query.vectors, k, exact=params.exact))
        return Retrieved(found.documents[:k], found.cosines[:k])
