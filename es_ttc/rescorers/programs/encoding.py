"""The programs' ``encode_fn`` on any encoder of es-ttc."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from es_ttc.rescorers.programs.interface import ADAPTERS, PASSAGE, QUERY, EncodeFn, ProgramError
from es_ttc.rescorers.programs.primitives.vectors import normalise
from es_ttc.vectors.tokens import Float32


class TextEncoder(Protocol):
    """What is used of an encoder (:class:`es_ttc.encoders.base.Encoder` has it)."""

    def encode(self, texts: Sequence[str], *, role: Literal["query", "document"], tokens: bool) -> Any:
        """Return encodings whose ``pooled`` is ``(n, d)``."""
        ...

    def shortened(self, max_length: int) -> "TextEncoder":
        """Return the same reading at most ``max_length`` tokens."""
        ...


def encode_fn(encoder: TextEncoder) -> EncodeFn:
    """Return the interface's ``encode_fn``.

    The query adapter is the encoder's query role (its prompt, for models that have prompts), all others its document
    role: models here have no adapters, and then "channels collapse to a single view" (section 3.1).
    """

    def encode(
        texts: Sequence[str], adapter: str = PASSAGE, dimensions: int | None = None, max_length: int | None = None
    ) -> Float32:
        if adapter not in ADAPTERS:
            raise ProgramError(f"unknown adapter [{adapter}]: take one of {', '.join(ADAPTERS)}")
        reader = encoder if max_length is None else encoder.shortened(max_length)
        vectors: Float32 = reader.encode(
            list(texts), role="query" if adapter == QUERY else "document", tokens=False
        ).pooled
        if dimensions is None or dimensions >= vectors.shape[1]:
            return vectors
        return normalise(np.ascontiguousarray(vectors[:, :dimensions]))

    return encode
