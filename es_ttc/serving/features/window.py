"""Windows of hits: locate the documents' features, agree on an encoder, read the features, encode the query."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import not_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.base import Encoder
from es_ttc.errors import EngineError, EsTtcError, MissingFeature
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.readers import layout_of
from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.programs.encoding import encode_fn
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.columns import columns
from es_ttc.serving.features.encoding import EncodedQuery, Encoders, ignore_failure
from es_ttc.serving.features.field_types import mapped_fields
from es_ttc.serving.features.index_meta import IndexEncoderLookup, IndexMeta
from es_ttc.serving.features.keys import DocumentKey, unreadable, unsendable
from es_ttc.serving.features.locations import FeatureLocations, own_keys
from es_ttc.serving.features.missing import lacks_reversed, no_features, no_features_of
from es_ttc.serving.features.on_demand import OnDemandQueue
from es_ttc.serving.features.reader import FeatureReader, MissingFeatures, SideIndexUnreadable, WindowFeatures
from es_ttc.serving.features.scores import (
    FeatureNeeds,
    PreparedWindow,
    SuppliedDocuments,
    WindowRequest,
)
from es_ttc.serving.features.side_index import FeatureLocator
from es_ttc.serving.features.skip_reasons import SkipReason
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.tracing import span


class WindowReader:
    """Reads windows: the features of their documents, and the query's vectors by the documents' encoder."""

    def __init__(
        self,
        engine: EngineClient,
        reader: FeatureReader,
        attached: FeatureLocator,
        encoders: Encoders,
        meta: IndexMeta,
        on_demand: OnDemandQueue,
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._attached = attached
        self._encoders = encoders
        self._meta = meta
        self._on_demand = on_demand
        self._index_encoders = IndexEncoderLookup(engine, encoders.loaded_keys)

    async def read(
        self,
        hits: Sequence[Mapping[str, Any]],
        bare: Window,
        features: FeatureNeeds,
        request: WindowRequest,
        *,
        encoder: str | None = None,
        located: FeatureLocations | None = None,
        assume: bool = False,
    ) -> PreparedWindow:
        """Return the window of hits with features. What only reading them needs is freed here.

        After scoring, which reads up to a gigabyte, every object would have to be fetched from main memory again.
        Hits have the doc values of `ttc.hash` and `ttc.encoder`, and `_id` if they may be of an attached index.
        ``encoder`` is the window's, None for that of the hits' indices, ``located`` where the features are, None if
        that is to be found out. With ``assume`` the window is to be confirmed: see :attr:`PreparedWindow.confirmed`.
        """
        located = await self._located(hits, request, located, assume=assume)
        if not located.assumed:
            return await self._read_window(hits, bare, features, request, encoder, located)
        since = time.perf_counter()
        confirmed = asyncio.create_task(self._attached.confirmed(located.assumed, request.caller, since=since))
        confirmed.add_done_callback(ignore_failure)
        try:
            window = await self._read_window(hits, bare, features, request, encoder, located)
        except EsTtcError:
            if await confirmed:
                raise
            return await self.read(hits, bare, features, replace(request, coverage=None), encoder=encoder)
        return replace(window, confirmed=confirmed)

    async def _read_window(
        self,
        hits: Sequence[Mapping[str, Any]],
        bare: Window,
        features: FeatureNeeds,
        request: WindowRequest,
        encoder: str | None,
        located: FeatureLocations,
    ) -> PreparedWindow:
        """Return the window of hits that were located."""
        known = await self._known(hits, features, request, encoder, located)
        features = await self._with_query_side_vectors(located, known, features, request)
        try:
            features_read, encoded = await self._read(located, known, features, request)
            replaced = _was_replaced(known, features_read)
        except SideIndexUnreadable:
            replaced = True
        if replaced:
            located = await self._located(hits, replace(request, coverage=None))
            known = await self._known(hits, features, request, encoder, located)
            features_read, encoded = await self._read(located, known, features, request)
        _skip_faulty(located, features_read, features)
        of_hits, complete = _of_hits(located, features_read, features)
        if not complete.any():
            if located.skipped:
                raise no_features(located.skipped)
            raise await self._missing(features, features.needs, hits, located, request.caller)
        return await self._with_features(bare, located, of_hits, complete, encoded, features, request)

    async def read_sent(
        self, documents: SuppliedDocuments, bare: Window, features: FeatureNeeds, request: WindowRequest
    ) -> PreparedWindow | MissingFeatures:
        """Return the window of documents that an engine's plugin reads, or the features that it must send.

        It raises what :meth:`read` raises, and EngineError if the features' layout cannot be sent.
        """
        if not any(documents.keys):
            raise no_features({})
        located = FeatureLocations([*documents.keys])
        known = await self._usable(located, request, None, unsendable)
        if SkipReason.ENCODER in located.skipped.values():
            await self._encoder(located, known, request)  # raises before features of a wrong encoder are sent
        features = await self._with_query_side_vectors(located, known, features, request)
        started = time.perf_counter()
        features_read = await self._reader.window_of(known, features.stored, documents.blobs, request.caller)
        request.timings.features += _ms_since(started)
        if isinstance(features_read, MissingFeatures):
            return features_read
        _skip_faulty(located, features_read, features)
        of_hits, complete = _of_hits(located, features_read, features)
        if not complete.any():
            rest = features.needs - {Feature.REVERSED}
            if rest != features.needs and any(rest <= stored.keys() for stored in features_read.documents):
                raise lacks_reversed(features.reader, [known[0].index], attached=False)
            raise no_features(located.skipped)
        encoder = await self._encoder(located, known, request)
        encoded = await self._encoded(encoder, features, request)
        return await self._with_features(bare, located, of_hits, complete, encoded, features, request)

    async def encoder_of(self, hits: Sequence[Mapping[str, Any]], request: WindowRequest) -> str | None:
        """Return the encoder of hits that contain their own features; None if no hit does."""
        keys = own_keys(hits).known
        return await self._index_encoders.agreed(keys, request.caller) if keys else None

    async def _with_features(
        self,
        bare: Window,
        located: FeatureLocations,
        of_hits: WindowFeatures,
        complete: NDArray[np.bool_],
        encoded: EncodedQuery,
        features: FeatureNeeds,
        request: WindowRequest,
    ) -> PreparedWindow:
        """Return a window of those documents that have the needed features; at least one has."""
        query = encoded.query
        request.timings.encode = encoded.seconds * 1000
        window, stored = bare, of_hits.documents
        if not features.partial and not complete.all():
            window, stored = bare.part(np.flatnonzero(complete).tolist()), [*compress(stored, complete)]
        made = columns(stored, features.stored, partial=features.partial)
        window = replace(window, **{**made, "present": {**window.present, **made["present"]}})
        query, window = await self._with_encoder_and_calibration(
            query, window, located.known[0], features, request.caller
        )
        with_offsets = stored if Feature.OFFSETS in features.stored else ()
        return PreparedWindow(
            window=window,
            query=query,
            mask=np.ones(len(complete), np.bool_) if features.partial else complete,
            complete=complete,
            from_memory=of_hits.from_memory,
            encoder=encoded.key,
            fields=[offset[Feature.OFFSETS][1] if Feature.OFFSETS in offset else () for offset in with_offsets],
            stale=located.stale,
            skipped=located.skipped,
        )

    async def _with_encoder_and_calibration(
        self, query: Query, window: Window, key: DocumentKey, features: FeatureNeeds, caller: Caller
    ) -> tuple[Query, Window]:
        """Return query and window with an encoding function and a calibration, if these are read."""
        if Feature.ENCODER in features.required:
            encode = encode_fn(await self._encoders.serving(key.encoder, key.index))
            parts = tuple(replace(part, encode=encode) for part in query.parts)
            query = replace(query, encode=encode, parts=parts)
        if Feature.CALIBRATION in features.optional:
            calibration = await self._meta.calibration(key.index, key.encoder, caller)
            if calibration is None and Feature.CALIBRATION in features.required:
                raise MissingFeature(
                    f"method [{features.reader}] needs a sample of the queries that index [{key.index}] is asked: "
                    f"give it one with `es-ttc calibrate queries {key.index} --queries FILE`"
                )
            window = replace(window, calibration=calibration)
        return query, window

    async def _located(
        self,
        hits: Sequence[Mapping[str, Any]],
        request: WindowRequest,
        located: FeatureLocations | None = None,
        *,
        assume: bool = False,
    ) -> FeatureLocations:
        """Return where the hits' features are, and queue the documents that wait to be encoded."""
        started = time.perf_counter()
        located = located or await self._attached.locate(hits, request.caller, assume=assume)
        request.timings.features += _ms_since(started)
        if request.coverage is not None:
            await self._on_demand.add(hits, located, request.coverage)
        return located

    async def _known(
        self,
        hits: Sequence[Mapping[str, Any]],
        features: FeatureNeeds,
        request: WindowRequest,
        encoder: str | None,
        located: FeatureLocations,
    ) -> list[DocumentKey]:
        """Return the keys of the features that can be used; at least one can."""
        if any(located.keys):
            return await self._usable(located, request, encoder, unreadable)
        if located.skipped:
            raise no_features(located.skipped)
        raise await self._missing(features, frozenset(), hits, located, request.caller)

    async def _usable(
        self,
        located: FeatureLocations,
        request: WindowRequest,
        encoder: str | None,
        refusal: Callable[[DocumentKey], EngineError | None],
    ) -> list[DocumentKey]:
        """Skip documents of layouts that cannot be read, and of other encoders than the window's; return the others."""
        known = located.known
        of_layouts = {layout_of(key.hash): key for key in known}
        refusals = {layout: error for layout, key in of_layouts.items() if (error := refusal(key)) is not None}
        if refusals:
            known = located.skip(SkipReason.LAYOUT, lambda key: layout_of(key.hash) in refusals)
            if not known:
                raise next(iter(refusals.values()))
        encoders = {key.encoder for key in known}
        if not encoder and len(encoders) > 1:
            encoder = await self._index_encoders.agreed(known, request.caller)
        agreed = encoder or known[0].encoder
        if encoders != {agreed}:
            known = located.skip(SkipReason.ENCODER, lambda key: key.encoder != agreed)
        if not known:
            raise no_features(located.skipped)
        return known

    async def _encoder(
        self, located: FeatureLocations, known: Sequence[DocumentKey], request: WindowRequest
    ) -> Encoder:
        """Return the documents' encoder; it is loaded only if it is also the encoder of their indices."""
        key = known[0]
        if not self._encoders.has(key.encoder) and not await self._index_encoders.is_encoder_of_all(
            key.encoder, known, request.caller
        ):
            located.skip(SkipReason.ENCODER, lambda _: True)
            raise no_features(located.skipped)
        return await self._encoders.serving(key.encoder, key.index)

    async def _encoded(self, encoder: Encoder, features: FeatureNeeds, request: WindowRequest) -> EncodedQuery:
        """Return the query's vectors for documents of an encoder."""
        return await self._encoders.finish(
            encoder, request.texts, request.caller.indices, request.begun, tokens=features.query_tokens
        )

    async def _missing(
        self,
        features: FeatureNeeds,
        lacking: frozenset[Feature],
        hits: Sequence[Mapping[str, Any]],
        located: FeatureLocations,
        caller: Caller,
    ) -> EsTtcError:
        """Return the error for a window without the needed features."""
        fields = {HASH, ENCODER, *(FEATURES[feature].name for feature in lacking)}
        indices = sorted({str(hit["_index"]) for hit in hits})
        own = [index for index in indices if index not in located.sides]
        sides = sorted(filter(None, located.sides.values()))
        mapped = await mapped_fields(self._engine.as_caller(caller), own, fields) if own else set()
        if sides:
            mapped |= await mapped_fields(self._engine.as_side_reader(caller), sides, fields)
        if located.sides and not sides:
            return no_features({})
        return no_features_of(features.reader, fields - mapped, indices, attached=bool(sides))

    async def _with_query_side_vectors(
        self, located: FeatureLocations, known: Sequence[DocumentKey], features: FeatureNeeds, request: WindowRequest
    ) -> FeatureNeeds:
        """Return the needed features, documents as queries among them if their encoder has such vectors."""
        if Feature.REVERSED not in features.required:
            return features
        return replace(features, reversed=(await self._encoder(located, known, request)).distinguishes_roles)

    async def _read(
        self, located: FeatureLocations, known: Sequence[DocumentKey], features: FeatureNeeds, request: WindowRequest
    ) -> tuple[WindowFeatures, EncodedQuery]:
        """Read features and encode the query at the same time."""
        encoder = await self._encoder(located, known, request)
        query_task = asyncio.create_task(self._encoded(encoder, features, request))
        query_task.add_done_callback(ignore_failure)
        try:
            started = time.perf_counter()
            with span("features"):
                features_read = await self._reader.window(known, features.stored, request.caller)
            request.timings.features += _ms_since(started)
            return features_read, await query_task
        finally:
            query_task.cancel()


def _skip_faulty(located: FeatureLocations, found: WindowFeatures, features: FeatureNeeds) -> None:
    """Note the documents with a faulty feature that is needed."""
    for place, key in enumerate(located.keys if found.faults else ()):
        faults = found.faults.get(key, {}) if key is not None else {}
        fault = next((faults[feature] for feature in sorted(faults) if feature in features.needs), None)
        if fault is not None:
            located.skipped[place] = fault


def _was_replaced(known: Sequence[DocumentKey], found: WindowFeatures) -> bool:
    """Return whether documents are missing from a side index that contained them: then it was replaced."""
    lacking_all = compress(known, map(not_, found.documents))
    return any(key.side and key not in found.faults for key in lacking_all)


def _of_hits(
    located: FeatureLocations, found: WindowFeatures, features: FeatureNeeds
) -> tuple[WindowFeatures, NDArray[np.bool_]]:
    """Return the features of each hit, and which hits have all that are needed; the others have none."""
    documents, complete = found.documents, np.ones(len(located.keys), np.bool_)
    if len(documents) < len(complete):
        of_known = iter(documents)
        documents = [{} if key is None else next(of_known) for key in located.keys]
        complete[:] = [key is not None for key in located.keys]
    for feature in features.needs:
        complete[[place for place, stored in enumerate(documents) if feature not in stored]] = False
    if not complete.all():
        documents = [stored if whole else {} for stored, whole in zip(documents, complete.tolist(), strict=True)]
    return replace(found, documents=documents), complete


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
