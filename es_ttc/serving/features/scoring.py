"""Scores of a window: find the documents' features and their encoder, read the features, run the method."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import not_
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.base import Encoder
from es_ttc.errors import EngineError, EsTtcError, MissingFeature
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.spec import CHUNKS, ENCODER, HASH, REVERSED
from es_ttc.rescorers.base import Feature, Query, SelectiveRescorer, Window
from es_ttc.rescorers.programs.encoding import encode_fn
from es_ttc.serving.deadline import ScoringError
from es_ttc.serving.features.attached import FeatureLocations, own_keys
from es_ttc.serving.features.calibrations import CalibrationStore
from es_ttc.serving.features.columns import Stored, columns, partial_columns
from es_ttc.serving.features.decoding import require_readable, require_sendable
from es_ttc.serving.features.encoding import EncodedQuery, ignore_failure
from es_ttc.serving.features.index_encoders import IndexEncoderLookup, ScorableDocuments
from es_ttc.serving.features.index_meta import mapped_fields
from es_ttc.serving.features.numbers import FieldsReader, FieldTypes, numbers_of
from es_ttc.serving.features.scores import (
    Method,
    ScoringRequest,
    SuppliedDocuments,
    Timings,
    WindowScores,
    checked_scores,
    first_pass_scores,
    no_features,
    relative_scores,
)
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.features.store import FeatureServices, MissingFeatures, SideIndexUnreadable, WindowFeatures
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.tracing import span
from es_ttc.vectors.tokens import Float32


@dataclass(frozen=True, slots=True)
class _HitColumns:
    """What hits contain themselves.

    Attributes:
        ids: Ids of all hits.
        first_pass: ``(n,)`` the engine's scores.
        joined: Number of hits at the end that are not of the first pass.
        numbers: By numeric field that the method reads ``(n,)`` values, NaN where a document has none.
        pinned: Number of pinned hits at the beginning.
    """

    ids: Sequence[str]
    first_pass: Float32
    joined: int = 0
    numbers: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    pinned: int = 0

    @property
    def relative(self) -> Float32:
        """The engine's scores as methods get them."""
        return relative_scores(self.first_pass, self.pinned, self.joined)


@dataclass(frozen=True, slots=True)
class _ReadWindow:
    """A window whose features were read."""

    of_hits: _HitColumns
    scorable: ScorableDocuments
    found: WindowFeatures
    skipped: Mapping[int, SkipReason]


class WindowScorer:
    """Scores windows of hits."""

    def __init__(self, services: FeatureServices, numbers: FieldTypes) -> None:
        self._services = services
        self._numbers = numbers
        self._calibrations = CalibrationStore(services.upstream)
        self._index_encoders = IndexEncoderLookup(
            services.upstream, services.attached.side_caller, services.encoders.loaded_keys
        )

    def begin_encoding(self, method: Method, texts: tuple[str, ...]) -> asyncio.Task[EncodedQuery] | None:
        """Start to encode a query with the first encoder, before the window's encoder is known."""
        if not method.encodes:
            return None
        return self._services.encoders.begin(texts, tokens=method.query_tokens)

    async def score(
        self,
        hits: Sequence[Mapping[str, Any]],
        request: ScoringRequest,
        *,
        joined: int = 0,
        pinned: int = 0,
        encoder: str | None = None,
    ) -> WindowScores:
        """Return the scores of hits.

        Args:
            hits: The engine's hits, with the fields `ttc.hash`, `ttc.encoder` and `ttc.version`; with `_id` and their
                versions if they may be of an attached index.
            request: The method and the request's data.
            joined: Number of hits at the end that are not of the first pass.
            pinned: Number of pinned hits at the beginning, see :func:`relative_scores`.
            encoder: Identity of the window's encoder; None for that of the hits' indices.

        Raises:
            MissingFeature: The index lacks a feature that the method needs.
            EncoderMismatch: The gateway lacks the index's encoder, or the hits are of indices with different encoders.
            NoFeatures: No hit has usable features.
            EncoderBusy: The index's encoder is not loaded now.
            EngineError: Features could not be read.
            ScoringError: The method failed.
        """
        if not hits:
            return WindowScores.none(0)
        ids = [hit.get("_id", "") for hit in hits]
        of_hits = _HitColumns(ids, first_pass_scores(hits), joined, await self._read_numbers(hits, request), pinned)
        if not request.method.encodes:
            window = _without_features(of_hits, request)
        else:
            window = await self._prepared(hits, of_hits, request, encoder)
        return await self._scored(window, request)

    async def _prepared(
        self, hits: Sequence[Mapping[str, Any]], of_hits: _HitColumns, request: ScoringRequest, encoder: str | None
    ) -> WindowScores:
        """Return a window before it is scored. What only reading its features needs is freed here.

        After scoring, which reads up to a gigabyte, every object would have to be fetched from main memory again.
        """
        located, scorable = await self._located(hits, request, encoder)
        request = await self._with_roles(scorable, request)
        try:
            found, encoded = await self._read(scorable, request)
            replaced = _was_replaced(scorable, found)
        except SideIndexUnreadable:
            replaced = True
        if replaced:
            located, scorable = await self._located(hits, request, encoder)
            found, encoded = await self._read(scorable, request)
        skipped = _skipped(scorable, found, request.method)
        if not _any_complete(found, request.method):
            if skipped:
                raise _none_usable(skipped, scorable.known[0].index)
            await self._raise_missing(request.method.needs, hits, located, request)
        prepared = await self._with_window(_ReadWindow(of_hits, scorable, found, skipped), encoded, request)
        prepared.stale = frozenset(located.stale)
        return prepared

    async def encoder_of(self, hits: Sequence[Mapping[str, Any]], request: ScoringRequest) -> str | None:
        """Return the encoder of hits that contain their own features; None if no hit does.

        Raises:
            EncoderMismatch: They are of indices with different encoders.
        """
        keys = [key for key in own_keys(hits).keys if key is not None]
        return await self._index_encoders.agreed(keys, request.caller) if keys else None

    async def score_sent(
        self, documents: SuppliedDocuments, request: ScoringRequest, *, pinned: int = 0
    ) -> WindowScores | MissingFeatures:
        """Return the scores of documents that an engine's plugin reads, or the features that it must send.

        Raises:
            EncoderMismatch: The gateway lacks the index's encoder, or the documents are of indices with different ones.
            NoFeatures: No document has the features that the method needs.
            EncoderBusy: The index's encoder is not loaded now.
            EngineError: The features' layout cannot be sent, or a codebook could not be read.
            ScoringError: The method failed.
        """
        method, caller = request.method, request.caller
        names = [str(place) for place in range(len(documents.keys))]
        of_hits = _HitColumns(names, documents.first_pass, pinned=pinned)
        if not method.encodes:
            return await self._scored(_without_features(of_hits, request), request)
        if not any(documents.keys):
            raise no_features({})
        scorable = await self._index_encoders.scorable(documents.keys, {}, caller, None, require=require_sendable)
        if SkipReason.ENCODER in scorable.skipped.values():
            await self._encoder(scorable, request)  # raises before features of a wrong encoder are sent
        request = await self._with_roles(scorable, request)
        method = request.method
        started = time.perf_counter()
        needed = method.needs | method.wants
        found = await self._services.store.window_of(scorable.known, needed, documents.blobs, caller)
        request.timings.features += _ms_since(started)
        if isinstance(found, MissingFeatures):
            return found
        skipped = _skipped(scorable, found, method)
        if not _any_complete(found, method):
            if _lacks_reversed_only(found, method):
                raise _lacks_reversed(method, [scorable.known[0].index], attached=False)
            raise _none_usable(skipped, scorable.known[0].index)
        encoder = await self._encoder(scorable, request)
        encoded = await self._services.encoders.finish(
            encoder, request.texts, request.begun, tokens=method.query_tokens
        )
        read = _ReadWindow(of_hits, scorable, found, skipped)
        return await self._scored(await self._with_window(read, encoded, request), request)

    async def details(self, scored: WindowScores, method: Method, places: Sequence[int]) -> list[dict[str, Any]]:
        """Return the method's details of scored documents."""
        if scored.window is None or scored.query is None or not places:
            return []
        pool, rescorer = self._services.pool, method.rescorer
        if isinstance(rescorer, SelectiveRescorer):
            return await pool.run(rescorer.detail_of, scored.query, scored.window, method.params, places)
        # The whole window, because details may depend on its other documents.
        details = await pool.run(rescorer.detail, scored.query, scored.window, method.params)
        return [details[place] for place in places]

    def summary(self, scored: WindowScores, method: Method) -> dict[str, Any]:
        """Return the method's part of the summary; empty for most methods."""
        if method.partial is None or scored.window is None or scored.query is None:
            return {}
        return method.partial.summary(scored.query, scored.window, method.params)

    async def run(self, method: Method, query: Query, window: Window, timings: Timings) -> Float32:
        """Return a method's scores of a window for the response, ``(k,)``, not negative.

        Raises:
            ScoringError: The method failed, or returned invalid scores.
            TooManyRequests: Too many windows are waiting.
        """
        started = time.perf_counter()
        try:
            with span("score"):
                scores = await self._services.pool.run(method.rescorer.score, query, window, method.params)
        except (EsTtcError, asyncio.CancelledError):
            raise
        except Exception as error:  # a method may raise anything
            raise ScoringError(f"method [{method.rescorer.name}] failed: {type(error).__name__}: {error}") from error
        timings.score = _ms_since(started)
        return checked_scores(np.asarray(scores), len(window), method.rescorer)

    async def _read_numbers(
        self, hits: Sequence[Mapping[str, Any]], request: ScoringRequest
    ) -> dict[str, NDArray[np.float64]]:
        """Return the numeric fields that the method reads, ``(n,)`` by name."""
        caller, numbers = request.caller, numbers_of(hits, request.method.fields)
        empty = [name for name, values in numbers.items() if np.isnan(values).all()]
        if empty and caller.pit is not None:
            indices = sorted({str(hit["_index"]) for hit in hits})
            reader = FieldsReader.of_method(request.method.rescorer.name)
            await self._numbers.require(empty, reader, Caller(caller.headers), indices)
        return numbers

    async def _scored(self, scored: WindowScores, request: ScoringRequest) -> WindowScores:
        """Score a prepared window, in place."""
        assert scored.query is not None and scored.window is not None  # noqa: S101, PT018 - it is prepared
        scored.values[scored.mask] = await self.run(request.method, scored.query, scored.window, request.timings)
        return scored

    async def _with_window(self, read: _ReadWindow, encoded: EncodedQuery, request: ScoringRequest) -> WindowScores:
        """Return a window in which at least one document has what the method needs, before it is scored."""
        method, found, keys, of_hits = request.method, read.found, read.scorable.keys, read.of_hits
        request.timings.encode = encoded.seconds * 1000
        scored = WindowScores.none(len(keys))
        scored.first_pass = of_hits.first_pass
        complete, documents = _complete(read.scorable, found, method)
        places = np.array(complete, dtype=np.intp)
        scored.complete[places] = True
        if method.partial is None:
            window = Window(
                of_hits.ids if len(complete) == len(keys) else [of_hits.ids[place] for place in complete],
                of_hits.relative[places],
                numbers={name: values[places] for name, values in of_hits.numbers.items()},
                **columns(documents, method.needs | method.wants),
            )
        else:
            if len(complete) < len(keys):
                by_place = dict(zip(complete, documents, strict=True))
                documents = [by_place.get(place, {}) for place in range(len(keys))]
            places = np.arange(len(keys))
            features = partial_columns(documents, method.needs | method.wants)
            window = Window(of_hits.ids, of_hits.relative, numbers=of_hits.numbers, **features)
            if of_hits.joined:
                in_first_pass = places < len(places) - of_hits.joined
                window = replace(window, present={**window.present, Feature.FIRST_PASS: in_first_pass})
        scored.mask[places] = True
        scored.query, scored.window = await self._with_encoder_and_calibration(
            encoded.query, window, read.scorable, request
        )
        scored.from_memory, scored.encoder = found.from_memory, encoded.key
        if method.detail:
            scored.fields = [stored[Feature.OFFSETS][1] if Feature.OFFSETS in stored else () for stored in documents]
        scored.skipped = read.skipped
        return scored

    async def _with_encoder_and_calibration(
        self, query: Query, window: Window, scorable: ScorableDocuments, request: ScoringRequest
    ) -> tuple[Query, Window]:
        """Return query and window with an encoding function and a calibration, if the method reads them."""
        method, key = request.method, scorable.known[0]
        needs = method.rescorer.needs(method.params)
        if Feature.ENCODER in needs:
            query = replace(query, encode=encode_fn(await self._services.encoders.serving(key.encoder, key.index)))
        if Feature.CALIBRATION in method.rescorer.wants:
            calibration = await self._calibrations.of(key.index, key.encoder, request.caller)
            if calibration is None and Feature.CALIBRATION in needs:
                raise MissingFeature(
                    f"method [{method.rescorer.name}] needs a sample of the queries that index [{key.index}] is asked: "
                    f"give it one with `es-ttc calibrate {key.index} --queries FILE`"
                )
            window = replace(window, calibration=calibration)
        return query, window

    async def _located(
        self, hits: Sequence[Mapping[str, Any]], request: ScoringRequest, encoder: str | None
    ) -> tuple[FeatureLocations, ScorableDocuments]:
        """Return where the hits' features are, and which hits can be scored."""
        started = time.perf_counter()
        located = await self._services.attached.locate(hits, request.caller)
        request.timings.features += _ms_since(started)
        ambiguous = dict.fromkeys(located.ambiguous, SkipReason.MARKS)
        if not any(located.keys):
            if ambiguous:
                raise no_features(ambiguous)
            await self._raise_missing(frozenset(), hits, located, request)
        scorable = await self._index_encoders.scorable(
            located.keys, ambiguous, request.caller, encoder, require=require_readable
        )
        return located, scorable

    async def _encoder(self, scorable: ScorableDocuments, request: ScoringRequest) -> Encoder:
        """Return the documents' encoder; it is loaded only if it is also the encoder of their indices."""
        known = scorable.known
        if not self._services.encoders.has(scorable.encoder) and not await self._index_encoders.is_encoder_of_all(
            scorable.encoder, known, request.caller
        ):
            foreign = {place: SkipReason.ENCODER for place, key in enumerate(scorable.keys) if key is not None}
            raise no_features({**scorable.skipped, **foreign})
        return await self._services.encoders.serving(scorable.encoder, known[0].index)

    async def _with_roles(self, scorable: ScorableDocuments, request: ScoringRequest) -> ScoringRequest:
        """Return the request, with documents as queries among the method's needs if their encoder has such vectors."""
        if not request.method.reads_reversed or not (await self._encoder(scorable, request)).distinguishes_roles:
            return request
        return replace(request, method=replace(request.method, reversed=True))

    async def _read(self, scorable: ScorableDocuments, request: ScoringRequest) -> tuple[WindowFeatures, EncodedQuery]:
        """Read features and encode the query at the same time."""
        method = request.method
        encoder = await self._encoder(scorable, request)
        encoding = self._services.encoders.finish(encoder, request.texts, request.begun, tokens=method.query_tokens)
        query_task = asyncio.create_task(encoding)
        query_task.add_done_callback(ignore_failure)
        try:
            started = time.perf_counter()
            with span("features"):
                found = await self._services.store.window(scorable.known, method.needs | method.wants, request.caller)
            request.timings.features += _ms_since(started)
            return found, await query_task
        finally:
            query_task.cancel()

    async def _raise_missing(
        self,
        needs: frozenset[Feature],
        hits: Sequence[Mapping[str, Any]],
        located: FeatureLocations,
        request: ScoringRequest,
    ) -> NoReturn:
        """Raise the error for a window without the needed features."""
        fields = {HASH, ENCODER, *(FEATURES[feature].name for feature in needs)}
        indices = sorted({str(hit["_index"]) for hit in hits})
        own = [index for index in indices if index not in located.sides]
        sides = sorted(filter(None, located.sides.values()))
        mapped = await mapped_fields(self._services.upstream, request.caller, own, fields) if own else set()
        if sides:
            mapped |= await mapped_fields(
                self._services.upstream, self._services.attached.side_caller(request.caller), sides, fields
            )
        lacking = sorted(fields - mapped)
        if not lacking or (located.sides and not sides):
            raise no_features({})
        if lacking == [REVERSED]:
            raise _lacks_reversed(request.method, indices, attached=bool(sides))
        names = ", ".join(indices)
        flag = " --chunks" if {CHUNKS, REVERSED} & set(lacking) else ""
        raise MissingFeature(
            f"method [{request.method.rescorer.name}] needs [{', '.join(lacking)}], which index [{names}] does not "
            f"have: add it with `es-ttc attach{flag}`, or make an index that has it with `es-ttc index create{flag}` "
            "and `es-ttc ingest`"
        )


def _lacks_reversed(method: Method, indices: Sequence[str], *, attached: bool) -> MissingFeature:
    """Return the error for indices without documents as queries, which the method reads."""
    first = indices[0]
    fix = (
        f"add them with `es-ttc attach {first} --chunks`"
        if attached
        else "make the index anew with `es-ttc index create --chunks` and `es-ttc ingest`, or, if its features were "
        f"attached, run `es-ttc detach {first}` and `es-ttc attach {first} --in-index --chunks`"
    )
    return MissingFeature(
        f"method [{method.rescorer.name}] compares the query with documents encoded as queries too, and index "
        f"[{', '.join(indices)}] has none (no [{REVERSED}]): {fix}"
    )


def _lacks_reversed_only(found: WindowFeatures, method: Method) -> bool:
    """Return whether documents have all that the method needs, except the documents as queries."""
    rest = method.needs - {Feature.REVERSED}
    return Feature.REVERSED in method.needs and any(rest <= stored.keys() for stored in found.documents)


def _none_usable(skipped: Mapping[int, SkipReason], index: str) -> EsTtcError:
    """Return the error for a window whose documents are all skipped."""
    if set(skipped.values()) == {SkipReason.CODEBOOK}:  # without its codebook no document of an index has features
        return EngineError(
            f"the codebook of index [{index}] could not be read: give the gateway credentials that may see the index's "
            "mapping"
        )
    return no_features(skipped)


def _any_complete(found: WindowFeatures, method: Method) -> bool:
    """Return whether a document has all features that the method needs."""
    needs = method.needs
    return any(needs <= stored.keys() for stored in found.documents)


def _skipped(scorable: ScorableDocuments, found: WindowFeatures, method: Method) -> dict[int, SkipReason]:
    """Return the places of skipped hits, including those with a faulty feature that the method needs."""
    skipped = dict(scorable.skipped)
    for place, key in enumerate(scorable.keys if found.faults else ()):
        faults = found.faults.get(key, {}) if key is not None else {}
        fault = next((faults[feature] for feature in sorted(faults) if feature in method.needs), None)
        if fault is not None:
            skipped[place] = fault
    return skipped


def _was_replaced(scorable: ScorableDocuments, found: WindowFeatures) -> bool:
    """Return whether documents are missing from a side index that contained them: then it was replaced."""
    lacking_all = compress(scorable.known, map(not_, found.documents))
    return any(key.side and key not in found.faults for key in lacking_all)


def _without_features(of_hits: _HitColumns, request: ScoringRequest) -> WindowScores:
    """Return a window for a method that reads no features, before it is scored."""
    scored = WindowScores.none(len(of_hits.ids))
    scored.first_pass = of_hits.first_pass
    scored.mask[:] = scored.complete[:] = True
    scored.window = Window(of_hits.ids, of_hits.relative, numbers=of_hits.numbers)
    scored.query = Query(request.texts[0], np.zeros((0, 0), np.float32))
    return scored


def _complete(
    scorable: ScorableDocuments, found: WindowFeatures, method: Method
) -> tuple[Sequence[int], Sequence[Stored]]:
    """Return the places of the documents that have all features that the method needs, and their features."""
    places: Sequence[int] = range(len(scorable.keys))
    if len(scorable.known) < len(scorable.keys):
        places = [place for place, key in enumerate(scorable.keys) if key is not None]
    lacking = {
        place
        for feature in method.needs
        for place, stored in zip(places, found.documents, strict=True)
        if feature not in stored
    }
    if not lacking:
        return places, found.documents
    complete = [place not in lacking for place in places]
    return [*compress(places, complete)], [*compress(found.documents, complete)]


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
