"""Dense rescoring: the cosine of the query's and the document's pooled vectors. The smallest rescorer there is."""

from typing import Any, ClassVar

import numpy as np

from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.vectors.tokens import Float32


class DenseParams(Params):
    """Dense rescoring has no parameters."""


class DenseRescorer:
    """The cosine of the pooled vectors; with several query vectors, the greatest of their cosines.

    The documents' vectors are the encoder's own. MeanCos of Spectral Retrieval (section III-A) compares with the mean
    of a document's token vectors: that is `spectral` with `"scales": ["mean"]`.
    """

    name: ClassVar[str] = "dense"
    Params: ClassVar[type[Params]] = DenseParams
    wants: ClassVar[frozenset[Feature]] = frozenset()
    similarity: ClassVar[bool] = True

    def needs(self, params: DenseParams) -> frozenset[Feature]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Feature.POOLED})

    def score(self, query: Query, window: Window, params: DenseParams) -> Float32:  # noqa: ARG002
        """Return the cosines, ``(k,)``."""
        assert window.pooled is not None  # noqa: S101 - promised by needs
        cosines: Float32 = np.max(window.pooled @ query.vectors.T, axis=1)
        return cosines

    def detail(self, query: Query, window: Window, params: DenseParams) -> list[dict[str, Any]]:  # noqa: ARG002
        """A cosine of pooled vectors has nothing further to show."""
        return [{} for _ in range(len(window))]
