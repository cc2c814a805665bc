"""What a rescorer is: a declaration (name, parameters, needs) and one function from a query and a window to scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from es_ttc.vectors.chunks import DocumentChunks
from es_ttc.vectors.encode import EncodeFn
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors


class Feature(StrEnum):
    """Optional inputs of a window. A rescorer declares which it requires and which it can use.

    ``OFFSETS`` never changes a score: it is read for ``detail`` only. ``CALIBRATION`` belongs to the index as a whole,
    ``QUERY_TOKENS`` and ``ENCODER`` to the query. ``REVERSED`` exists only for an encoder that distinguishes roles: for
    any other it would be ``POOLED`` again, and whoever makes a window leaves it out, needed or not.
    """

    FIRST_PASS = "first_pass"
    POOLED = "pooled"
    TOKENS = "tokens"
    NORMS = "norms"
    OFFSETS = "offsets"
    CHUNKS = "chunks"
    REVERSED = "reversed"
    CALIBRATION = "calibration"
    QUERY_TOKENS = "query_tokens"
    ENCODER = "encoder"


class Params(BaseModel):
    """Base of a rescorer's parameters: immutable, unknown keys refused, every field with a description and unit.

    Attributes:
        GRID: Values that `es-ttc tune` tries, by parameter as a request writes it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    GRID: ClassVar[Mapping[str, Sequence[Any]]] = {}

    def tried(self) -> Iterator[Mapping[str, Any]]:
        """Yield what `es-ttc tune` tries beside these parameters, as a request writes it.

        By default all combinations of the values of `GRID`, without the parameters that are given.
        """
        given = self.model_dump(by_alias=True, exclude_unset=True)
        declared = {name: values for name, values in self.GRID.items() if name not in given}
        for combination in product(*declared.values()) if declared else ():
            yield dict(zip(declared, combination, strict=True))


@dataclass(frozen=True, slots=True)
class Query:
    """An encoded query.

    Attributes:
        text: The query's text.
        vectors: ``(r, d)`` float32 unit rows: one pooled vector a query text; r > 1 where the request gives several
            (the agents' roles of Spectral Retrieval, section V-A).
        tokens: ``(t, d)`` float32 unit rows, the token vectors of the first text; None unless
            ``Feature.QUERY_TOKENS`` is needed.
        token_spans: ``(t, 2)`` int32, first and end character of each of them in the text, an empty span for special
            ones; for details, None where they are not known.
        encode: The encoder of the vectors, for methods that encode texts of their own; None unless
            ``Feature.ENCODER`` is needed.
        late: Whether the encoder is a late-interaction model, whose ``tokens`` are always given.
        word_means: ``(r, d)`` float32 unit rows, for each text the mean of its words' token vectors; None for an
            encoder whose pooled vector is the mean of all tokens.
        parts: The query of each text by itself; empty for a single text.
        encoded_shares: For each text the share of its characters that ``vectors`` are made from; empty where it is not
            known.
    """

    text: str
    vectors: Float32
    tokens: Float32 | None = None
    encode: EncodeFn | None = None
    late: bool = False
    word_means: Float32 | None = None
    token_spans: NDArray[np.int32] | None = None
    parts: "tuple[Query, ...]" = ()
    encoded_shares: tuple[float, ...] = ()

    @property
    def of_tokens(self) -> Float32:
        """What compares with document tokens and their means, ``(r, d)``: the means of words, else the pooled ones."""
        return self.vectors if self.word_means is None else self.word_means


@dataclass(frozen=True, slots=True)
class Window:
    """The documents to be rescored, with their features, in first-pass order; k documents.

    A feature is None unless the rescorer needs or wants it. Every document of a window has every feature that is
    present: documents that lack one never reach a rescorer, unless it is a :class:`PartialRescorer`.

    Attributes:
        ids: The documents' ids, for ``detail``; the gateway may leave them empty where only scores are wanted.
        first_pass: ``(k,)`` float32, the engine's own scores, non-increasing.
        pooled: ``(k, d)`` float32 unit rows.
        tokens: One :class:`TokenVectors` a document; it may have no rows (an empty document).
        norms: One :class:`ScaleNorms` a document, or None where they must be computed from the tokens.
        offsets: One ``(n, 3)`` int32 array a document: field ordinal, first character, end character of each token.
        chunks: One :class:`DocumentChunks` a document: sentences, pairs of sentences, paragraphs.
        reversed: ``(k, d)`` float32 unit rows, the documents encoded as queries; None where the encoder does not
            distinguish roles, so that ``pooled`` is the same.
        calibration: A sample of the queries that the index is asked.
        numbers: For a :class:`FieldRescorer` alone: by numeric field ``(k,)`` float64, NaN where a document
            has no value.
        present: For a :class:`PartialRescorer` alone: by feature, ``(k,)`` bool, which documents have it, where some
            do not. A document without it has zeros or nothing in its place.
    """

    ids: Sequence[str]
    first_pass: Float32
    pooled: Float32 | None = None
    tokens: Sequence[TokenVectors] | None = None
    norms: Sequence[ScaleNorms] | None = None
    offsets: Sequence[NDArray[np.int32]] | None = None
    chunks: Sequence[DocumentChunks] | None = None
    reversed: Float32 | None = None
    calibration: Moments | None = None
    numbers: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    present: Mapping[Feature, NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, places: Sequence[int]) -> "Window":
        """Return some of the documents as a window of their own, all of which have the features that are present."""
        picked: dict[str, Any] = {
            name: [values[place] for place in places]
            for name in ("ids", "tokens", "norms", "offsets", "chunks")
            if (values := getattr(self, name)) is not None
        }
        rows = np.array(places, np.intp)
        picked |= {
            name: values[rows]
            for name in ("first_pass", "pooled", "reversed")
            if (values := getattr(self, name)) is not None
        }
        numbers = {name: values[rows] for name, values in self.numbers.items()}
        return replace(self, **picked, numbers=numbers, present={})


P = TypeVar("P", bound=Params, contravariant=True)


@runtime_checkable
class Rescorer(Protocol[P]):
    """The contract of a rescorer; see ``es_ttc/rescorers/dense.py`` for the smallest one.

    Attributes:
        name: The ``method`` of a request. Lower case.
        Params: The model that validates a request's ``params``.
        wants: Features that are given where the index carries them and None where it does not: they make a score
            faster (norms) or its detail richer (offsets), but never change it.
        similarity: True where scores are cosines in [-1, 1]; they are then shown as (1 + score) / 2, the engines' own
            convention for cosine similarity. Otherwise scores must be >= 0.
    """

    name: ClassVar[str]
    Params: ClassVar[type[Params]]
    wants: ClassVar[frozenset[Feature]]
    similarity: ClassVar[bool]

    def needs(self, params: P) -> frozenset[Feature]:
        """Return the features that a window and a query must carry to be scored with these parameters."""

    def score(self, query: Query, window: Window, params: P) -> Float32:
        """Return ``(k,)`` float32 scores, greater is better; pure and deterministic."""

    def detail(self, query: Query, window: Window, params: P) -> list[dict[str, Any]]:
        """Return for each document what the method can show about its score (JSON-ready); ``{}`` where nothing.

        The window is the one that was scored, whole: a method may judge its documents together.
        """


@runtime_checkable
class PartialRescorer(Rescorer[P], Protocol[P]):
    """A rescorer that takes what an index carries, and also scores documents that lack features.

    Its windows may hold documents without features that it needs, and documents that the first pass did not find:
    `Window.present` says so. One document or more has all features that it needs.

    Attributes:
        joins_nearest: Whether the documents nearest to the query by pooled vector join the window where a request says
            nothing about candidates.
    """

    joins_nearest: ClassVar[bool]

    def takes(self, params: P) -> frozenset[Feature]:
        """Return further features that change the scores where the index carries them."""

    def summary(self, query: Query, window: Window, params: P) -> dict[str, Any]:
        """Return what the response tells about the scoring as a whole (JSON-ready)."""


@runtime_checkable
class SelectiveRescorer(Rescorer[P], Protocol[P]):
    """A rescorer that shows some documents of a window in less time than all: those of the page."""

    def detail_of(self, query: Query, window: Window, params: P, places: Sequence[int]) -> list[dict[str, Any]]:
        """Return what `detail` shows of the documents at these places of the window, in their order."""


@runtime_checkable
class FieldRescorer(Rescorer[P], Protocol[P]):
    """A rescorer that also reads numeric fields of the documents: their doc values, with the caller's credentials."""

    def fields(self, params: P) -> tuple[str, ...]:
        """Return the names of the fields that are read with these parameters; their values are `Window.numbers`."""


def as_partial(rescorer: Rescorer[Any]) -> PartialRescorer[Any] | None:
    """Return a rescorer if it is a :class:`PartialRescorer`."""
    return cast("PartialRescorer[Any]", rescorer) if _is(rescorer, PartialRescorer) else None


def as_field_rescorer(rescorer: Rescorer[Any]) -> FieldRescorer[Any] | None:
    """Return a rescorer if it is a :class:`FieldRescorer`."""
    return cast("FieldRescorer[Any]", rescorer) if _is(rescorer, FieldRescorer) else None


_interfaces: dict[tuple[type, type], bool] = {}
"""What was found out of classes: every search asks, and a check against a protocol takes 20 us."""


def _is(rescorer: object, interface: type) -> bool:
    key = type(rescorer), interface
    if key not in _interfaces:
        _interfaces[key] = isinstance(rescorer, interface)
    return _interfaces[key]
