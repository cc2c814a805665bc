"""Late-interaction models (ColBERT): what they add to an encoder, the same on every backend.

Their texts begin with a marker of the role, queries are filled up with further tokens (query expansion), documents are
cut at a length of their own, and the vectors of some document tokens (punctuation) are left out. Their token vectors
are what they are trained for; the pooled vector is the mean of these.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

import numpy as np
from tokenizers import Tokenizer

from es_ttc.encoders.base import Role
from es_ttc.encoders.options import LoadOptions, identity_of
from es_ttc.encoders.packages import ModelFiles
from es_ttc.encoders.text_encoder import TextEncoder, WindowVectors
from es_ttc.encoders.windows import InputWindow, Reader, WindowedText
from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32

_DIGITS = 8


@dataclass(frozen=True, slots=True)
class MaskExpansion:
    """How queries are filled up."""

    strategy: Literal["fixed", "min"]
    length: int
    token: int
    attend: bool


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """What a late-interaction model adds to an encoder; read from the model, and part of the encoder's identity."""

    query_length: int  # maximum number of tokens of a query, special ones and the marker included
    document_length: int
    prompts: Mapping[Role, str]  # the marker and the prompt of each role
    expansion: MaskExpansion | None
    skipped: Mapping[Role, frozenset[int]]  # by role, ids of tokens whose vectors are left out
    kept_only: frozenset[int] | None  # ids of the only tokens of documents whose vectors are kept; None for all
    projection: Sequence[str]  # the layers after the transformer, as text

    @classmethod
    def of(
        cls,
        query_length: int | None,
        document_length: int | None,
        longest: int,  # the length where none is stated
        prompts: Mapping[Role, str],
        expansion: MaskExpansion | None,
        skipped: frozenset[int],
        skipped_in: Collection[str],  # the roles in which tokens are skipped
        kept_only: Collection[int] | None,
        projection: Sequence[str],
        *,
        positions: int | None,
        source: str,
    ) -> Self:
        """Return what a model states, if it has a position for every token that it reads."""
        query, document = query_length or longest, document_length or longest
        if expansion is not None:
            query = expansion.length if expansion.strategy == "fixed" else max(query, expansion.length)
        for what, length in (("queries", query), ("documents", document)):
            if positions and length > positions:
                raise ConfigurationError(
                    f"model [{source}] reads {what} of {length} tokens and has {positions} positions: correct the "
                    "length in its configuration"
                )
        roles: tuple[Role, ...] = ("query", "document")
        by_role = {role: skipped if role in skipped_in else frozenset() for role in roles}
        kept = frozenset(kept_only) if kept_only else None
        return cls(query, document, prompts, expansion, by_role, kept, projection)

    @property
    def digest(self) -> str:
        """The value of :attr:`es_ttc.encoders.base.EncoderIdentity.late`, without what stands elsewhere in it."""
        expansion = self.expansion
        content: list[Any] = [
            self.query_length,
            [expansion.strategy, expansion.length, expansion.token, expansion.attend] if expansion else None,
            {role: sorted(ids) for role, ids in sorted(self.skipped.items())},
            None if self.kept_only is None else sorted(self.kept_only),
            list(self.projection),
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:_DIGITS]


def skipped_ids(words: Iterable[str], id_of: Callable[[str], int | None], unknown: str | None) -> frozenset[int]:
    """Return the ids of the tokens whose vectors are left out; unknown words are dropped, as by the model's library."""
    none = None if unknown is None else id_of(unknown)
    found = {word: id_of(word) for word in words}
    return frozenset(
        number for word, number in found.items() if number is not None and (number != none or word == unknown)
    )


def described(inner: int, outer: int, function: str, *, residual: bool) -> str:
    """Return what the weights of a projection do not say of it, for :attr:`LateInteraction.projection`."""
    return f"{inner} to {outer}, {function}{', residual' if residual else ''}"


def require_vocabulary(tokens: Iterable[int], embeddings: int, source: str) -> None:
    """Check that every token has an embedding."""
    greatest = max(tokens, default=-1)
    if greatest >= embeddings:
        raise ConfigurationError(
            f"model [{source}] has embeddings of {embeddings} tokens and a tokenizer with token number {greatest}: "
            "tokenizer and weights are of different models"
        )


class TokenModel(Protocol):
    """A backend: runs windows through a frozen model; thread-safe; each window's vectors depend on it alone."""

    dims: int

    def rows(self, windows: Sequence[InputWindow], *, role: Role) -> list[Float32]:
        """Return ``(t, d)`` projected token vectors of every window of t tokens, of any length, in the order given."""


def late_encoder(
    files: ModelFiles,
    options: LoadOptions,
    tokenizer: Tokenizer,
    late: LateInteraction,
    model: TokenModel,
    backend: str,
) -> TextEncoder:
    """Return the encoder of a late-interaction model on a backend."""
    identity = identity_of(
        files, options, own_dims=model.dims, own_max_length=late.document_length, prompts=late.prompts, late=late.digest
    )
    reader = LateReader(tokenizer, late, max_length=identity.max_length)
    return TextEncoder(identity, backend, reader, LateModel(model, dims=identity.dims), distinguishes_roles=True)


class LateReader:
    """Reads one window of a text, with its role's length; what is beyond is not read, as in the model's own library."""

    def __init__(self, tokenizer: Tokenizer, late: LateInteraction, *, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._late = late
        self._lengths: dict[Role, int] = {"query": late.query_length, "document": max_length}
        self._readers = {
            role: Reader(tokenizer, max_length=length, prompts={role: late.prompts[role]})
            for role, length in self._lengths.items()
        }

    @property
    def stop_words(self) -> frozenset[str]:
        """The stop words of the tokenizer's vocabulary."""
        return self._readers["document"].stop_words

    def read(self, texts: Sequence[str], role: Role, max_tokens: int) -> list[WindowedText]:
        """Return the window of each text; see :meth:`es_ttc.encoders.windows.Reader.read`."""
        # One row more than a window has: a text that is longer shows by its second window.
        found = self._readers[role].read(texts, role, self._lengths[role] + 1)
        return [self._finished(reading, role, max_tokens) for reading in found]

    def shortened(self, max_length: int) -> "LateReader":
        """Return a reader that cuts documents at fewer tokens; queries stay as the model reads them."""
        return LateReader(self._tokenizer, self._late, max_length=max_length)

    def _finished(self, reading: WindowedText, role: Role, max_tokens: int) -> WindowedText:
        if not reading.windows:
            return reading
        window = self._expanded(reading.windows[0]) if role == "query" else reading.windows[0]
        kept = self._kept(window.ids, role)
        truncated = len(reading.windows) > 1 or int(kept.sum()) > max_tokens
        return WindowedText([replace(window, kept=kept)], truncated)

    def _expanded(self, window: InputWindow) -> InputWindow:
        expansion = self._late.expansion
        missing = 0 if expansion is None else expansion.length - len(window.ids)
        if expansion is None or missing <= 0:
            return window
        return replace(
            window,
            ids=[*window.ids, *[expansion.token] * missing],
            type_ids=[*window.type_ids, *[0] * missing],
            offsets=np.concatenate([window.offsets, np.zeros((missing, 2), dtype=np.int32)]),
            unattended=0 if expansion.attend else missing,
        )

    def _kept(self, ids: Sequence[int], role: Role) -> Any:
        found = np.array(ids)
        kept = ~np.isin(found, sorted(self._late.skipped[role]))
        if role == "document" and self._late.kept_only is not None:
            kept &= np.isin(found, sorted(self._late.kept_only))
        return kept


class LateModel:
    """A model of token vectors alone: its pooled vectors are the means of these, at unit length."""

    def __init__(self, model: TokenModel, *, dims: int) -> None:
        self._model = model
        self._dims = dims

    def run(self, windows: Sequence[InputWindow], *, role: Role, tokens: bool) -> list[WindowVectors]:
        """Run the windows; see :meth:`es_ttc.encoders.text_encoder.WindowModel.run`."""
        found = self._model.rows(windows, role=role)
        return [self._vectors(window, one, tokens) for window, one in zip(windows, found, strict=True)]

    def _vectors(self, window: InputWindow, projected: Float32, tokens: bool) -> WindowVectors:
        rows: Float32 = projected[window.kept, : self._dims]
        lengths: Float32 = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
        lengths[lengths == 0] = 1
        unit = rows / lengths
        pooled: Float32 = unit.mean(axis=0) if len(unit) else np.zeros(self._dims, dtype=np.float32)
        return WindowVectors(pooled, unit if tokens else None)
