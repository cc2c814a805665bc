"""From a window of hits to the method's scores: encoder, features, scores, inside a deadline."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.base import Encoder
from es_ttc.errors import EngineError, EsTtcError, MissingFeature
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.spec import CHUNKS, ENCODER, HASH
from es_ttc.rescorers.base import Feature, Params, PartialRescorer, Query, Rescorer, Window
from es_ttc.rescorers.programs.encoding import encode_fn
from es_ttc.rescorers.similarity import shown_similarity
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.attached import AttachedFeatureLocator, FeatureLocations, own_key
from es_ttc.serving.features.calibrations import CalibrationStore
from es_ttc.serving.features.columns import columns, partial_columns
from es_ttc.serving.features.encoding import EncodedQuery, Encoders, ignore_failure
from es_ttc.serving.features.field_caps import mapped_fields
from es_ttc.serving.features.index_encoders import IndexEncoderLookup
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.features.store import (
    FeatureStore,
    MissingFeatures,
    SentBlobs,
    SideIndexUnreadable,
    WindowFeatures,
    require_readable,
    require_sendable,
)
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.pool import BoundedPool
from es_ttc.serving.search.fallback import ScoringError
from es_ttc.vectors.tokens import Float32

_NOT_STORED_WITH_DOCUMENTS = frozenset({Feature.FIRST_PASS, Feature.QUERY_TOKENS, Feature.ENCODER, Feature.CALIBRATION})


class NoFeatures(EsTtcError):
    """No document of the window has features that can be used: they are pending, have no text, or odd features.

    Args:
        reason: One sentence.
        skipped: Places of hits whose features are not used.
    """

    status = 503
    type = "ttc_pending_features_exception"

    def __init__(self, reason: str, skipped: Mapping[int, SkipReason] | None = None) -> None:
        super().__init__(reason)
        self.skipped = skipped or {}


@dataclass(frozen=True, slots=True)
class Method:
    """A rescorer with the parameters of one request.

    Attributes:
        rescorer: The method.
        params: Its validated parameters.
        detail: Whether hits show what the method can show.
    """

    rescorer: Rescorer[Any]
    params: Params
    detail: bool

    @property
    def needs(self) -> frozenset[Feature]:
        """Stored features that every scored document must have."""
        return self.rescorer.needs(self.params) - _NOT_STORED_WITH_DOCUMENTS

    @property
    def wants(self) -> frozenset[Feature]:
        """Stored features that are read as well; offsets only where detail is asked for."""
        shown_only = frozenset() if self.detail else frozenset({Feature.OFFSETS})
        return (self.rescorer.wants - shown_only | self._takes) - self.needs - _NOT_STORED_WITH_DOCUMENTS

    @property
    def partial(self) -> PartialRescorer[Any] | None:
        """The rescorer where it scores documents that lack features too."""
        return self.rescorer if isinstance(self.rescorer, PartialRescorer) else None

    @property
    def query_tokens(self) -> bool:
        """Whether the query's token vectors are needed."""
        return Feature.QUERY_TOKENS in self.rescorer.needs(self.params) | self._takes

    @property
    def _takes(self) -> frozenset[Feature]:
        return frozenset() if self.partial is None else self.partial.takes(self.params)

    @property
    def encodes(self) -> bool:
        """Whether the query is encoded at all."""
        return bool(self.needs) or self.query_tokens


@dataclass(slots=True)
class Timings:
    """Milliseconds of each stage; encoding runs beside the first pass."""

    first_pass: float = 0.0
    candidates: float | None = None
    features: float = 0.0
    encode: float = 0.0
    score: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return a JSON-ready form, without the stages that a search does not have."""
        stages = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: round(ms, 2) for name, ms in stages.items() if ms is not None}


@dataclass(slots=True)
class WindowScores:
    """Scores of a whole first pass of n hits.

    Attributes:
        values: ``(n,)`` float32 scores as they are shown; 0 where there is none.
        mask: ``(n,)`` bool, which hits have a score.
        complete: ``(n,)`` bool, which hits have all features that the method needs.
        from_memory: Documents whose features were in memory.
        encoder: Identity of the encoder, or None where the method needs none.
        window: The scored documents, for the detail.
        query: The encoded query, for the detail.
        fields: For each scored document the names that its offsets' ordinals stand for.
        stale: Places of hits whose features are those of an earlier text.
        skipped: Places of hits whose features are not used, and why.
    """

    values: Float32
    mask: NDArray[np.bool_]
    complete: NDArray[np.bool_]
    from_memory: int = 0
    encoder: str | None = None
    window: Window | None = None
    query: Query | None = None
    fields: Sequence[tuple[str, ...]] = field(default_factory=tuple)
    stale: frozenset[int] = frozenset()
    skipped: Mapping[int, SkipReason] = field(default_factory=dict)

    def has(self, place: int) -> bool:
        """Whether the hit at a place has a score; none beyond those that were scored has."""
        return place < len(self.mask) and bool(self.mask[place])


@dataclass(frozen=True, slots=True)
class SuppliedDocuments:
    """The documents of a first pass of n hits, as whoever reads them himself tells of them.

    Attributes:
        keys: For each document what identifies its features, None for one without.
        first_pass: ``(n,)`` float32, the engine's scores.
        blobs: By content hash the blobs of documents that were asked for.
    """

    keys: Sequence[DocumentKey | None]
    first_pass: Float32
    blobs: SentBlobs


@dataclass(frozen=True, slots=True)
class _Candidates:
    """A first pass with what is known of its documents; ``found`` tells of those that have a key.

    Documents whose features are not used have none, and are among the ``skipped``. The last ``joined`` ones are no hits
    of the first pass.
    """

    ids: Sequence[str]
    first_pass: Float32
    joined: int
    keys: Sequence[DocumentKey | None]
    found: WindowFeatures
    skipped: Mapping[int, SkipReason]


@dataclass(frozen=True, slots=True)
class _SameEncoder:
    """The documents of a first pass whose features are read: all of one encoder.

    Attributes:
        encoder: Its identity.
        keys: For each hit what identifies its features, None for one whose features are not there or not used.
        skipped: Places of hits whose features are not used.
    """

    encoder: str
    keys: Sequence[DocumentKey | None]
    skipped: dict[int, SkipReason]

    @property
    def known(self) -> list[DocumentKey]:
        """The documents that have features."""
        return [key for key in self.keys if key is not None]


class WindowScorer:
    """Scores the hits of a first pass.

    Args:
        upstream: The engine.
        features: The documents' features.
        attached: Finds those of attached indices.
        encoders: The queries' encoders.
        pool: Where methods run.
    """

    def __init__(
        self,
        upstream: Upstream,
        features: FeatureStore,
        attached: AttachedFeatureLocator,
        encoders: Encoders,
        pool: BoundedPool,
    ) -> None:
        self._upstream = upstream
        self._features = features
        self._attached = attached
        self._encoders = encoders
        self._calibrations = CalibrationStore(upstream)
        self._index_encoders = IndexEncoderLookup(upstream, attached.door, encoders.loaded_keys)
        self._pool = pool

    def begin_encoding(self, method: Method, texts: tuple[str, ...]) -> asyncio.Task[EncodedQuery] | None:
        """Start to encode a query while the engine runs the first pass; most gateways have one encoder."""
        if not method.encodes:
            return None
        return self._encoders.begin(texts, tokens=method.query_tokens)

    async def score(
        self,
        hits: Sequence[Mapping[str, Any]],
        method: Method,
        texts: tuple[str, ...],
        begun: asyncio.Task[EncodedQuery] | None,
        caller: Caller,
        took: Timings,
        *,
        joined: int = 0,
        like: str | None = None,
    ) -> WindowScores:
        """Return the scores of a first pass.

        Args:
            hits: The engine's hits, with the fields `ttc.hash`, `ttc.encoder` and `ttc.version`; with `_id` and their
                versions where they may be of an attached index.
            method: The method.
            texts: The query's texts.
            begun: What :meth:`begin_encoding` gave.
            caller: In whose name documents are read.
            took: Receives the stages' times.
            joined: How many hits at the end were found otherwise than by the first pass.
            like: Identity of the encoder whose documents are scored; that of their index where none is given.

        Raises:
            MissingFeature: The index lacks what the method needs.
            EncoderMismatch: The documents' index was encoded by another encoder, or several were by several.
            NothingToScore: No document has features yet.
            EsTtcError: Encoding, reading or scoring failed.
        """
        first_pass = np.array([hit.get("_score") or 0.0 for hit in hits], dtype=np.float32)
        scored = _no_scores(len(hits))
        if not hits:
            return scored
        ids = [str(hit.get("_id", "")) for hit in hits]
        if not method.encodes:
            return await self._without_features(scored, ids, first_pass, method, texts, took)

        located, agreed = await self._located(hits, caller, method, took, like)
        try:
            found, encoded = await self._read(agreed, method, texts, begun, caller, took)
            moved = _has_moved(agreed, found)
        except SideIndexUnreadable:
            moved = True
        if moved:  # to another side index, while we read
            located, agreed = await self._located(hits, caller, method, took, like)
            found, encoded = await self._read(agreed, method, texts, begun, caller, took)
        scored.stale = frozenset(located.stale)
        candidates = _Candidates(ids, first_pass, joined, agreed.keys, found, _skipped(agreed, found, method))
        some = _any_complete(found, method)
        if not some and candidates.skipped:
            raise _nothing_usable(candidates.skipped, agreed.known[0].index)
        await self._require(some, method.needs, hits, located, caller, method)
        return await self._scored(scored, candidates, method, encoded, caller, took)

    async def encoder_of(self, hits: Sequence[Mapping[str, Any]], caller: Caller) -> str | None:
        """Return the encoder that hits with features of their own are scored by; None where there are none.

        Raises:
            EncoderMismatch: They are of indices with different encoders.
        """
        keys = [key for hit in hits if (key := own_key(hit)) is not None]
        return await self._index_encoders.agreed(keys, caller) if keys else None

    async def score_sent(
        self,
        documents: SuppliedDocuments,
        method: Method,
        texts: tuple[str, ...],
        begun: asyncio.Task[EncodedQuery] | None,
        caller: Caller,
        took: Timings,
    ) -> WindowScores | MissingFeatures:
        """Return the scores of documents that someone else has found and reads, or what he has to send along.

        Args:
            documents: The documents of a first pass.
            method: The method.
            texts: The query's texts.
            begun: What :meth:`begin_encoding` gave.
            caller: In whose name codebooks and calibrations are read.
            took: Receives the stages' times.

        Raises:
            EncoderMismatch: The documents' index was encoded by another encoder, or several were by several.
            NothingToScore: No document has the features that the method needs.
            EsTtcError: Encoding or scoring failed.
        """
        count = len(documents.keys)
        scored = _no_scores(count)
        ids = [str(place) for place in range(count)]
        if not method.encodes:
            return await self._without_features(scored, ids, documents.first_pass, method, texts, took)
        if not any(documents.keys):
            raise _nothing_to_score({})
        agreed = await self._agreed(documents.keys, {}, caller, None, require=require_sendable)
        known = agreed.known
        if SkipReason.ENCODER in agreed.skipped.values():
            await self._serving(agreed, caller)  # else the wrong ones would be sent along
        started = time.perf_counter()
        found = await self._features.window_of(known, method.needs | method.wants, documents.blobs, caller)
        took.features += _ms_since(started)
        if isinstance(found, MissingFeatures):
            return found
        skipped = _skipped(agreed, found, method)
        if not _any_complete(found, method):
            raise _nothing_usable(skipped, known[0].index)
        encoder = await self._serving(agreed, caller)
        encoded = await self._encoders.finish(encoder, texts, begun, tokens=method.query_tokens)
        candidates = _Candidates(ids, documents.first_pass, 0, agreed.keys, found, skipped)
        return await self._scored(scored, candidates, method, encoded, caller, took)

    async def _without_features(
        self,
        scored: WindowScores,
        ids: list[str],
        first_pass: Float32,
        method: Method,
        texts: tuple[str, ...],
        took: Timings,
    ) -> WindowScores:
        """Fill in the scores of a method that reads no features."""
        scored.mask[:] = scored.complete[:] = True
        scored.window, scored.query = Window(ids, first_pass), Query(texts[0], np.zeros((0, 0), dtype=np.float32))
        scored.values[:] = await self.run(method, scored.query, scored.window, took)
        return scored

    async def _scored(
        self,
        scored: WindowScores,
        candidates: _Candidates,
        method: Method,
        encoded: EncodedQuery,
        caller: Caller,
        took: Timings,
    ) -> WindowScores:
        """Fill in the scores of the documents that have what the method needs; there is one or more."""
        took.encode = encoded.seconds * 1000
        found, needs = candidates.found, method.needs
        with_features = [place for place, key in enumerate(candidates.keys) if key is not None]
        complete = {
            place: skip_reasons.consistent(stored)
            for place, stored in zip(with_features, found.documents, strict=True)
            if needs <= stored.keys()
        }
        scored.complete[[*complete]] = True
        if method.partial is None:
            places = np.array([*complete], dtype=np.intp)
            documents = [*complete.values()]
            window = Window(
                [candidates.ids[place] for place in places],
                candidates.first_pass[places],
                **columns(documents, needs | method.wants),
            )
        else:
            places = np.arange(len(candidates.keys))
            documents = [complete.get(place, {}) for place in places.tolist()]
            window = Window(candidates.ids, candidates.first_pass, **partial_columns(documents, needs | method.wants))
            if candidates.joined:
                by_first_pass = places < len(places) - candidates.joined
                window = replace(window, present={**window.present, Feature.FIRST_PASS: by_first_pass})
        scored.mask[places] = True
        query = encoded.query
        key = next(key for key in candidates.keys if key is not None)
        if Feature.ENCODER in method.rescorer.needs(method.params):
            query = replace(query, encode=encode_fn(await self._encoders.serving(key.encoder, key.index)))
        if Feature.CALIBRATION in method.rescorer.wants:
            sample = await self._calibrations.of(key.index, key.encoder, caller)
            if sample is None and Feature.CALIBRATION in method.rescorer.needs(method.params):
                raise MissingFeature(
                    f"method [{method.rescorer.name}] needs a sample of the queries that index [{key.index}] is asked: "
                    f"give it one with `es-ttc calibrate {key.index} --queries FILE`"
                )
            window = replace(window, calibration=sample)
        scored.values[places] = await self.run(method, query, window, took)
        scored.from_memory, scored.encoder = found.from_memory, encoded.key
        scored.window, scored.query = window, query
        scored.fields = [stored[Feature.OFFSETS][1] if Feature.OFFSETS in stored else () for stored in documents]
        scored.skipped = candidates.skipped
        return scored

    async def details(self, scored: WindowScores, method: Method, places: Sequence[int]) -> list[dict[str, Any]]:
        """Return what the method can show about some of the scored documents.

        Args:
            scored: The outcome of :meth:`score`.
            method: The method.
            places: Places in the scored window.
        """
        if scored.window is None or scored.query is None or not places:
            return []
        # The whole window: of a method that judges documents together, what it shows of one depends on the others.
        details = await self._pool.run(method.rescorer.detail, scored.query, scored.window, method.params)
        return [details[place] for place in places]

    def summary(self, scored: WindowScores, method: Method) -> dict[str, Any]:
        """Return what the method tells about the scoring as a whole; most have nothing to tell."""
        if method.partial is None or scored.window is None or scored.query is None:
            return {}
        return method.partial.summary(scored.query, scored.window, method.params)

    async def run(self, method: Method, query: Query, window: Window, took: Timings) -> Float32:
        """Return a method's scores of a window as they are shown, ``(k,)``, not negative.

        Raises:
            ScoringError: The method failed, or broke its contract.
            TooManyRequests: Too many windows are waiting already.
        """
        started = time.perf_counter()
        try:
            scores = await self._pool.run(method.rescorer.score, query, window, method.params)
        except (EsTtcError, asyncio.CancelledError):
            raise
        except Exception as error:  # anyone's method may raise anything
            raise ScoringError(f"method [{method.rescorer.name}] failed: {type(error).__name__}: {error}") from error
        took.score = _ms_since(started)
        return _checked(np.asarray(scores), len(window), method.rescorer)

    async def _located(
        self, hits: Sequence[Mapping[str, Any]], caller: Caller, method: Method, took: Timings, like: str | None
    ) -> tuple[FeatureLocations, _SameEncoder]:
        """Find the documents' features; where there are none at all, say why."""
        started = time.perf_counter()
        located = await self._attached.locate(hits, caller)
        took.features += _ms_since(started)
        odd = dict.fromkeys(located.odd, SkipReason.MARKS)
        if odd and not any(located.keys):
            raise _nothing_to_score(odd)
        await self._require(any(located.keys), frozenset(), hits, located, caller, method)
        return located, await self._agreed(located.keys, odd, caller, like, require=require_readable)

    async def _agreed(
        self,
        keys: Sequence[DocumentKey | None],
        skipped: Mapping[int, SkipReason],
        caller: Caller,
        like: str | None,
        *,
        require: Callable[[DocumentKey], None],
    ) -> _SameEncoder:
        """Return the documents whose features can be read, and are of the encoder that the window is scored by.

        Args:
            keys: For each hit what identifies its features; one or more have some.
            skipped: Places of hits that are left out already.
            caller: In whose name indices are asked for their encoders.
            like: The encoder, where it is given.
            require: Raises an error where a document's layout cannot be read.

        Raises:
            EngineError: No document's layout can be read.
            EncoderMismatch: The documents are of indices with different encoders.
            NothingToScore: No document is of that encoder.
        """
        left, left_out = list(keys), dict(skipped)
        reason: EngineError | None = None
        for place, key in enumerate(keys):
            try:
                if key is not None:
                    require(key)
            except EngineError as error:
                reason = reason or error
                left[place], left_out[place] = None, SkipReason.LAYOUT
        known = [key for key in left if key is not None]
        if not known and reason is not None:
            raise reason
        encoder = like or await self._index_encoders.agreed(known, caller)
        for place, key in enumerate(left):
            if key is not None and key.encoder != encoder:
                left[place], left_out[place] = None, SkipReason.ENCODER
        if not any(left):
            raise _nothing_to_score(left_out)
        return _SameEncoder(encoder, left, left_out)

    async def _serving(self, agreed: _SameEncoder, caller: Caller) -> Encoder:
        """Return the encoder of the documents; one that is not at hand is loaded only where it is that of their index.

        Raises:
            EncoderMismatch: It is not one of ours.
            EncoderBusy: It is not loaded now.
            NothingToScore: It is not at hand, and their index has another one.
        """
        known = agreed.known
        if not self._encoders.has(agreed.encoder) and not await self._index_encoders.is_the_indexs(
            agreed.encoder, known, caller
        ):
            foreign = {place: SkipReason.ENCODER for place, key in enumerate(agreed.keys) if key is not None}
            raise _nothing_to_score({**agreed.skipped, **foreign})
        return await self._encoders.serving(agreed.encoder, known[0].index)

    async def _read(
        self,
        agreed: _SameEncoder,
        method: Method,
        texts: tuple[str, ...],
        begun: asyncio.Task[EncodedQuery] | None,
        caller: Caller,
        took: Timings,
    ) -> tuple[WindowFeatures, EncodedQuery]:
        """Read features beside the query's way through the encoder."""
        encoder = await self._serving(agreed, caller)
        query_task = asyncio.create_task(self._encoders.finish(encoder, texts, begun, tokens=method.query_tokens))
        query_task.add_done_callback(ignore_failure)
        try:
            started = time.perf_counter()
            found = await self._features.window(agreed.known, method.needs | method.wants, caller)
            took.features += _ms_since(started)
            return found, await query_task
        finally:
            query_task.cancel()

    async def _require(
        self,
        found: bool,
        needs: frozenset[Feature],
        hits: Sequence[Mapping[str, Any]],
        located: FeatureLocations,
        caller: Caller,
        method: Method,
    ) -> None:
        """Where no document has what is needed, say whether the index lacks the fields or the documents wait."""
        if found:
            return
        fields = {HASH, ENCODER, *(FEATURES[feature].name for feature in needs)}
        indices = sorted({str(hit["_index"]) for hit in hits})
        own = [index for index in indices if index not in located.sides]
        sides = sorted(filter(None, located.sides.values()))
        mapped = await mapped_fields(self._upstream, caller, own, fields) if own else set()
        if sides:
            mapped |= await mapped_fields(self._upstream, self._attached.door(caller), sides, fields)
        lacking = sorted(fields - mapped)
        if not lacking or (located.sides and not sides):
            raise _nothing_to_score({})
        names = ", ".join(indices)
        flag = " --chunks" if CHUNKS in lacking else ""
        raise MissingFeature(
            f"method [{method.rescorer.name}] needs [{', '.join(lacking)}], which index [{names}] does not have: add "
            f"it with `es-ttc attach{flag}`, or make an index that has it with `es-ttc index create{flag}` and "
            "`es-ttc ingest`"
        )


def _no_scores(count: int) -> WindowScores:
    return WindowScores(np.zeros(count, np.float32), np.zeros(count, np.bool_), np.zeros(count, np.bool_))


def _nothing_to_score(skipped: Mapping[int, SkipReason]) -> NoFeatures:
    if not skipped:
        return NoFeatures("no document of the window has features yet: they are pending, changed, or have no text")
    reasons = ", ".join(
        f"{reason} {count}" for reason, count in skip_reasons.summary(skipped.values())["reasons"].items()
    )
    return NoFeatures(
        f"no document of the window has features that can be used: {len(skipped)} were passed over ({reasons}): "
        "ingest or fill them again",
        skipped,
    )


def _nothing_usable(skipped: Mapping[int, SkipReason], index: str) -> EsTtcError:
    """Return why no document that was read has features; without its codebook a whole index has none."""
    if set(skipped.values()) == {SkipReason.CODEBOOK}:
        return EngineError(
            f"the codebook of index [{index}] could not be read: give the gateway credentials that may see the index's "
            "mapping"
        )
    return _nothing_to_score(skipped)


def _any_complete(found: WindowFeatures, method: Method) -> bool:
    """Whether a document has all that the method needs."""
    needs = method.needs
    return any(needs <= stored.keys() for stored in found.documents)


def _skipped(agreed: _SameEncoder, found: WindowFeatures, method: Method) -> dict[int, SkipReason]:
    """Return the places of hits whose features are not used, with those whose needed features turned out to be odd."""
    skipped = dict(agreed.skipped)
    for place, key in enumerate(agreed.keys if found.faults else ()):
        odd = found.faults.get(key, {}) if key is not None else {}
        fault = next((odd[feature] for feature in sorted(odd) if feature in method.needs), None)
        if fault is not None:
            skipped[place] = fault
    return skipped


def _has_moved(agreed: _SameEncoder, found: WindowFeatures) -> bool:
    """Whether a side index has lost documents that it has just had: another one has taken its place."""
    return any(
        key.side and not stored and key not in found.faults
        for key, stored in zip(agreed.known, found.documents, strict=True)
    )


def _checked(scores: NDArray[Any], length: int, rescorer: Rescorer[Any]) -> Float32:
    if scores.shape != (length,) or not np.issubdtype(scores.dtype, np.floating):
        raise ScoringError(
            f"method [{rescorer.name}] must return {length} floating-point scores, got {scores.dtype} {scores.shape}"
        )
    if not np.isfinite(scores).all():
        raise ScoringError(f"method [{rescorer.name}] returned a score that is not finite")
    shown = shown_similarity(scores.astype(np.float32)) if rescorer.similarity else scores.astype(np.float32)
    if (shown < 0).any():
        raise ScoringError(f"method [{rescorer.name}] returned a negative score, which the engines do not allow")
    return shown


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
