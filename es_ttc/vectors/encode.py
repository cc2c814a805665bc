"""The encoder as a function, for methods that encode texts of their own."""

from collections.abc import Sequence
from typing import Final, Protocol

from es_ttc.vectors.tokens import Float32

PASSAGE: Final = "retrieval.passage"  # the default adapter


class EncodeFn(Protocol):
    """The frozen encoder: each text costs one encoder call."""

    def __call__(
        self,
        texts: Sequence[str],
        adapter: str = PASSAGE,
        dimensions: int | None = None,  # number of components of each vector (Matryoshka); all if None
        max_length: int | None = None,  # number of tokens read of a text; the encoder's own limit if None
    ) -> Float32:
        """Return ``(n, d)`` float32 unit rows."""
