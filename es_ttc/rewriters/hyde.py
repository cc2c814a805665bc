"""HyDE: a hypothetical document as the expansion (Gao et al., ACL 2023), a baseline of SIRA.

HyDE itself encodes the document and searches by its vector. The baseline of SIRA's paper uses the document as an
expansion for BM25 (section 4.1), and so does this rewriter: a rewriter makes a query of words, and no vector.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from es_ttc.rewriters.passages import PassageParams, PassageRewriter


class HydeParams(PassageParams):
    """Parameters of :class:`HydeRewriter`."""

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {"weight": (0.05, 0.1, 0.2, 0.5, 1.0)}

    weight: float = Field(
        1.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Weight w of the document's words relative to the query; 1 for both as one text.",
    )


class HydeRewriter(PassageRewriter):
    """Search the text and a hypothetical document that a language model writes for it, by BM25.

    A baseline: a guess of the model is searched too, and no word is filtered.
    """

    name: ClassVar[str] = "hyde"
    Params: ClassVar[type[HydeParams]] = HydeParams
    asks_model: ClassVar[bool] = True
