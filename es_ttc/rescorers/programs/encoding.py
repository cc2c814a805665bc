"""The programs' ``encode_fn`` on any encoder of es-ttc."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from es_ttc.rescorers.programs.interface import (
    ADAPTERS,
    CLASSIFICATION,
    MATCHING,
    PASSAGE,
    QUERY,
    EncodeFn,
    ProgramError,
)
from es_ttc.rescorers.programs.primitives.vectors import normalise
from es_ttc.vectors.tokens import Float32

_OF_THE_MODEL = (MATCHING, CLASSIFICATION)


class ProgramEncoder(Protocol):
    """The used part of an encoder (:class:`es_ttc.encoders.base.Encoder` implements it)."""

    def encode(self, texts: Sequence[str], *, role: Literal["query", "document"], tokens: bool) -> Any:
        """Return encodings whose ``pooled`` is ``(n, d)``."""

    def adapted(self, adapter: str) -> "ProgramEncoder | None":
        """Return the same model under an adapter that it ships, or None."""

    def shortened(self, max_length: int) -> "ProgramEncoder":
        """Return the same encoder with at most ``max_length`` tokens per text."""


def encode_fn(encoder: ProgramEncoder) -> EncodeFn:
    """Return the interface's ``encode_fn``; adapters that a model lacks are the document role (section 3.1)."""

    def encode(
        texts: Sequence[str], adapter: str = PASSAGE, dimensions: int | None = None, max_length: int | None = None
    ) -> Float32:
        if adapter not in ADAPTERS:
            raise ProgramError(f"unknown adapter [{adapter}]: take one of {', '.join(ADAPTERS)}")
        view = encoder.adapted(adapter) if adapter in _OF_THE_MODEL else None
        reader = view or encoder
        if max_length is not None:
            reader = reader.shortened(max_length)
        vectors: Float32 = reader.encode(
            list(texts), role="query" if adapter == QUERY else "document", tokens=False
        ).pooled
        if dimensions is None or dimensions >= vectors.shape[1]:
            return vectors
        return normalise(np.ascontiguousarray(vectors[:, :dimensions]))

    return encode
