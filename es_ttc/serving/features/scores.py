"""What is scored and the result: a method with parameters, the request's data, the scores of a window."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.base import (
    Feature,
    Params,
    PartialRescorer,
    Query,
    Rescorer,
    Window,
    as_field_rescorer,
    as_partial,
)
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.serving.deadline import ScoringError
from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.keys import DocumentKey, SentBlobs
from es_ttc.serving.features.on_demand import Coverage
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.http.caller import Caller
from es_ttc.vectors.tokens import Float32

_GREATEST = 1e12
"""Greatest first-pass score that a method gets: sums of its squares are exact enough in float32."""
_NOT_STORED_WITH_DOCUMENTS = frozenset({Feature.FIRST_PASS, Feature.QUERY_TOKENS, Feature.ENCODER, Feature.CALIBRATION})


@dataclass(frozen=True)  # no slots: what follows from the fields is asked once per hit, and computed once
class FeatureNeeds:
    """The inputs that are read for a method, or for what a page shows of its hits.

    Attributes:
        reader: Name of the method, for messages.
        required: Inputs that it does not work without.
        optional: Further inputs that it uses where they are present.
        partial: Whether documents that lack stored features are read too.
        reversed: Whether the documents' encoder distinguishes roles, so that documents as queries are read.
    """

    reader: str
    required: frozenset[Feature]
    optional: frozenset[Feature]
    partial: bool = False
    reversed: bool = False

    @cached_property
    def needs(self) -> frozenset[Feature]:
        """Stored features that every document must have."""
        needed = self.required - _NOT_STORED_WITH_DOCUMENTS
        return needed if self.reversed else needed - {Feature.REVERSED}

    @cached_property
    def stored(self) -> frozenset[Feature]:
        """Stored features that are read."""
        return self.needs | (self.optional - _NOT_STORED_WITH_DOCUMENTS)

    @cached_property
    def query_tokens(self) -> bool:
        """Whether the query's token vectors are needed."""
        return Feature.QUERY_TOKENS in self.required | self.optional

    @cached_property
    def encodes(self) -> bool:
        """Whether the query is encoded."""
        return bool(self.needs) or self.query_tokens


@dataclass(frozen=True)  # no slots: what follows from the fields is computed once
class Method:
    """A rescorer with the parameters of one request."""

    rescorer: Rescorer[Any]
    params: Params
    detail: bool
    signals: bool = False
    """Whether the signals that it combines are returned with the scores; for `blend`."""
    reduced: bool = False
    """Whether it reads required features alone, which takes less time."""

    @cached_property
    def features(self) -> FeatureNeeds:
        """What it reads; offsets only for details."""
        required = self.rescorer.needs(self.params)
        optional = self.rescorer.wants if self.detail else self.rescorer.wants - {Feature.OFFSETS}
        optional = frozenset() if self.reduced else optional | self.taken
        return FeatureNeeds(self.rescorer.name, required, optional, partial=self.partial is not None)

    @cached_property
    def taken(self) -> frozenset[Feature]:
        """Features that change the scores where an index carries them, and that it works without."""
        return frozenset() if self.partial is None else self.partial.takes(self.params)

    @cached_property
    def partial(self) -> PartialRescorer[Any] | None:
        """The rescorer if it also scores documents that lack features, else None."""
        return as_partial(self.rescorer)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Numeric fields of documents that are read."""
        reader = as_field_rescorer(self.rescorer)
        return () if reader is None else reader.fields(self.params)


@dataclass(slots=True)
class Timings:
    """Milliseconds of each stage; encoding and the first pass may overlap."""

    first_pass: float | None = 0.0
    candidates: float | None = None
    features: float = 0.0
    encode: float = 0.0
    score: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the timings for a response, without stages that the search does not have."""
        stages = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: round(ms, 2) for name, ms in stages.items() if ms is not None}


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """What a window is read for.

    Attributes:
        texts: The query's texts.
        begun: The query's encoding in progress, or None.
        caller: The request context with which features and calibrations are read.
        timings: Receives the times of the stages.
        coverage: Receives how many documents are encoded; None if those that are not are not to be queued.
        each: Whether each text scores the window by itself.
    """

    texts: tuple[str, ...]
    begun: asyncio.Task[EncodedQuery] | None
    caller: Caller
    timings: Timings
    coverage: Coverage | None = None
    each: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWindow:
    """A window of n hits before it is scored.

    Attributes:
        window: The documents to be scored.
        query: The encoded query.
        mask: ``(n,)`` bool, which hits are in ``window``.
        complete: ``(n,)`` bool, which hits have all features that the method needs.
        from_memory: Number of documents whose features were cached.
        encoder: Identity of the encoder, or None if the method needs none.
        fields: For each document of ``window`` the field names for the ordinals in its offsets.
        stale: Places of hits whose features are of an earlier text.
        skipped: Places of hits whose features are not used, with the reason.
        confirmed: Whether the features are of the present texts; None if that is known.
    """

    window: Window
    query: Query
    mask: NDArray[np.bool_]
    complete: NDArray[np.bool_]
    from_memory: int = 0
    encoder: str | None = None
    fields: Sequence[tuple[str, ...]] = ()
    stale: frozenset[int] = frozenset()
    skipped: Mapping[int, SkipReason] = field(default_factory=dict)
    confirmed: asyncio.Task[bool] | None = None

    def positions(self) -> dict[int, int]:
        """Return the place of each hit of `window` among those that are in it, as `window` and `fields` hold them."""
        return {place: number for number, place in enumerate(np.flatnonzero(self.mask).tolist())}

    def share(self, number: int) -> dict[str, float]:
        """Return what share of a document's text its token vectors are made from, for its details; empty if of all."""
        tokens = self.window.tokens
        read = 1.0 if tokens is None else tokens[number].read
        return {"encoded_share": round(read, 4)} if read < 1 else {}

    def scored(self, values: Float32, first_pass: Float32, signals: Mapping[str, Float32]) -> "WindowScores":
        """Return the window with its scores."""
        prepared = {one.name: getattr(self, one.name) for one in fields(self)}
        return WindowScores(values=values, first_pass=first_pass, signals=signals, **prepared)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowScores(PreparedWindow):
    """A window of n hits with its scores.

    Attributes:
        values: ``(n,)`` float32, scores for the response; 0 for a hit without a score.
        first_pass: ``(n,)`` float32, the engine's scores.
        signals: Values of each signal for the documents of `window`, if the method returns them.
        parts: The same window scored by each text by itself, if the request asks for that; `values` are then the
            greatest of theirs.
    """

    values: Float32
    first_pass: Float32
    signals: Mapping[str, Float32] = field(default_factory=dict)
    parts: "Sequence[WindowScores]" = ()

    def has(self, place: int) -> bool:
        """Return whether the hit at a place has a score; hits after the window have none."""
        return place < len(self.mask) and bool(self.mask[place])


@dataclass(frozen=True, slots=True)
class SuppliedDocuments:
    """The n documents of a first pass, described by an engine's plugin.

    Attributes:
        keys: For each document the key of its features, None for one without features.
        first_pass: ``(n,)`` float32, the engine's scores.
        blobs: The blobs in the request.
    """

    keys: Sequence[DocumentKey | None]
    first_pass: Float32
    blobs: SentBlobs


def first_pass_scores(hits: Sequence[Mapping[str, Any]]) -> Float32:
    """Return the engine's scores of hits, ``(n,)`` float32; 0 for a hit without one."""
    try:
        return np.fromiter(map(itemgetter("_score"), hits), np.float32, len(hits))
    except (KeyError, TypeError):
        return np.array([hit.get("_score") or 0.0 for hit in hits], dtype=np.float32)


def scaled_scores(first_pass: Float32, pinned: int, joined: int) -> Float32:
    """Return first-pass scores as methods get them, ``(n,)``: only how they differ counts there.

    Pinned documents get the greatest score of the others, which would all be equal beside theirs. Very great scores are
    scaled down, because methods compute in float32.

    Args:
        first_pass: ``(n,)`` the engine's scores.
        pinned: Number of pinned documents at the beginning.
        joined: Number of documents at the end that are not of the first pass.
    """
    any_other = pinned < len(first_pass) - joined
    scores = np.minimum(first_pass, first_pass[pinned:].max()) if pinned and any_other else first_pass
    greatest = float(scores.max(initial=0.0))
    return scores if greatest <= _GREATEST else (scores.astype(np.float64) * (_GREATEST / greatest)).astype(np.float32)


def checked_scores(scores: NDArray[Any], length: int, rescorer: Rescorer[Any]) -> Float32:
    """Return a rescorer's scores for the response, ``(length,)`` float32, not negative."""
    if scores.shape != (length,) or not np.issubdtype(scores.dtype, np.floating):
        raise ScoringError(
            f"method [{rescorer.name}] must return {length} floating-point scores, got {scores.dtype} {scores.shape}"
        )
    if not np.isfinite(scores).all():
        raise ScoringError(f"method [{rescorer.name}] returned a score that is not finite")
    values = shown_similarity(scores.astype(np.float32)) if rescorer.similarity else scores.astype(np.float32)
    if (values < 0).any():
        raise ScoringError(f"method [{rescorer.name}] returned a negative score, which the engines do not allow")
    return values
