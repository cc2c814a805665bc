"""Scores of windows: run a method over what was read, and ask it for details."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import EsTtcError
from es_ttc.rescorers.base import Feature, Query, SelectiveRescorer, Window
from es_ttc.serving.deadline import ScoringError
from es_ttc.serving.features.columns import numbers_of
from es_ttc.serving.features.encoding import EncodedQuery, Encoders
from es_ttc.serving.features.field_types import FieldTypes
from es_ttc.serving.features.locations import FeatureLocations
from es_ttc.serving.features.scores import (
    Method,
    PreparedWindow,
    Timings,
    WindowRequest,
    WindowScores,
    checked_scores,
    first_pass_scores,
    scaled_scores,
)
from es_ttc.serving.features.window import WindowReader
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.pool import BoundedPool
from es_ttc.serving.tracing import span
from es_ttc.vectors.tokens import Float32


class WindowScorer:
    """Scores windows of hits."""

    def __init__(self, reader: WindowReader, encoders: Encoders, pool: BoundedPool, numbers: FieldTypes) -> None:
        self.reader = reader
        self._encoders = encoders
        self._pool = pool
        self._numbers = numbers

    def begin_encoding(
        self, method: Method, texts: tuple[str, ...], caller: Caller
    ) -> asyncio.Task[EncodedQuery] | None:
        """Start to encode a query with the first encoder, before the window's encoder is known."""
        return (
            self._encoders.begin(texts, caller.indices, tokens=method.features.query_tokens)
            if method.features.encodes
            else None
        )

    async def score(
        self,
        hits: Sequence[Mapping[str, Any]],
        method: Method,
        request: WindowRequest,
        *,
        joined: int = 0,
        pinned: int = 0,
        encoder: str | None = None,
        located: FeatureLocations | None = None,
        words: Float32 | None = None,
        part_words: Float32 | None = None,
    ) -> WindowScores:
        """Return the scores of hits.

        ``joined`` hits at the end are not of the first pass, ``pinned`` ones at the beginning are pinned. ``words`` are
        the scores of the query's words, None if they are the engine's scores; ``part_words``, ``(p, n)``, those of each
        text's words, None if they are the query's. Hits, ``encoder`` and ``located`` are as :meth:`WindowReader.read`
        takes them.
        """
        first_pass = first_pass_scores(hits)
        numbers = await self._read_numbers(hits, method, request.caller) if hits and method.fields else {}
        relative = scaled_scores(first_pass if words is None else words, pinned, joined)
        bare = Window([hit.get("_id", "") for hit in hits], relative, numbers=numbers)
        if not hits or not method.features.encodes:
            prepared = without_features(bare, request)
        else:
            if joined and method.features.partial:
                bare = replace(bare, present={Feature.FIRST_PASS: np.arange(len(hits)) < len(hits) - joined})
            read = partial(self.reader.read, hits, bare, method.features, encoder=encoder)
            prepared = await read(request, located=located, assume=True)

        async def scored(prepared: PreparedWindow) -> WindowScores:
            if not request.each:
                return await self.score_read(prepared, first_pass, method, request.timings)
            rows = None if part_words is None else [scaled_scores(row, pinned, joined) for row in part_words]
            return await self._score_parts(prepared, first_pass, rows, method, request.timings)

        scores = await scored(prepared)
        if prepared.confirmed is not None and not await prepared.confirmed:
            scores = await scored(await read(replace(request, coverage=None)))
        return scores

    async def _score_parts(
        self,
        prepared: PreparedWindow,
        first_pass: Float32,
        words: Sequence[Float32] | None,
        method: Method,
        timings: Timings,
    ) -> WindowScores:
        """Return a window's scores by each text of the query; ``words``, ``(n,)`` each, are those of their words."""
        parts = []
        for number, query in enumerate(prepared.query.parts):
            window = prepared.window
            if words is not None:
                window = replace(window, first_pass=words[number][prepared.mask])
            part = replace(prepared, query=query, window=window)
            parts.append(await self.score_read(part, first_pass, method, timings))
        return replace(prepared.scored(np.max([part.values for part in parts], axis=0), first_pass, {}), parts=parts)

    async def score_read(
        self, prepared: PreparedWindow, first_pass: Float32, method: Method, timings: Timings
    ) -> WindowScores:
        """Return the scores of a window that was read."""
        values = np.zeros(len(first_pass), np.float32)
        signals: Mapping[str, Float32] = {}
        if len(prepared.window):
            run = self.run(method, prepared.query, prepared.window, timings)
            values[prepared.mask], signals = await run
        return prepared.scored(values, first_pass, signals)

    async def details(self, scored: WindowScores, method: Method, places: Sequence[int]) -> list[dict[str, Any]]:
        """Return the method's details of scored documents."""
        if not places:
            return []
        rescorer = method.rescorer
        if isinstance(rescorer, SelectiveRescorer):
            return await self._pool.run(rescorer.detail_of, scored.query, scored.window, method.params, places)
        # The whole window, because details may depend on its other documents.
        details = await self._pool.run(rescorer.detail, scored.query, scored.window, method.params)
        return [details[place] for place in places]

    def summary(self, scored: WindowScores, method: Method) -> dict[str, Any]:
        """Return the method's part of the summary; empty for most methods."""
        if method.partial is None or not len(scored.window):
            return {}
        summary = method.partial.summary(scored.query, scored.window, method.params)
        if method.reduced:
            summary.pop("missing_signals", None)  # the index may have them
        return summary

    async def run(
        self, method: Method, query: Query, window: Window, timings: Timings
    ) -> tuple[Float32, Mapping[str, Float32]]:
        """Return a method's scores of a window for the response, ``(k,)``, not negative; and the signals, if wanted."""
        started = time.perf_counter()
        try:
            with span("score"):
                rescorer: Any = method.rescorer
                score = rescorer.score_and_signals if method.signals else rescorer.score
                result = await self._pool.run(score, query, window, method.params)
                scores, signals = result if method.signals else (result, {})
        except (EsTtcError, asyncio.CancelledError):
            raise
        except Exception as error:  # a method may raise anything
            raise ScoringError(f"method [{method.rescorer.name}] failed: {type(error).__name__}: {error}") from error
        timings.score += (time.perf_counter() - started) * 1000
        return checked_scores(np.asarray(scores), len(window), method.rescorer), signals

    async def _read_numbers(
        self, hits: Sequence[Mapping[str, Any]], method: Method, caller: Caller
    ) -> dict[str, NDArray[np.float64]]:
        """Return the numeric fields that the method reads, ``(n,)`` by name."""
        numbers = numbers_of(hits, method.fields)
        empty = [name for name, values in numbers.items() if np.isnan(values).all()]
        if empty and caller.pit is not None:
            indices = sorted({str(hit["_index"]) for hit in hits})
            reads = f"method [{method.rescorer.name}] reads"
            await self._numbers.require(empty, reads, Caller(caller.headers), indices)
        return numbers


def without_features(bare: Window, request: WindowRequest) -> PreparedWindow:
    """Return a window for a method that reads no features."""
    every = np.ones(len(bare), np.bool_)
    parts = tuple(Query(text, np.zeros((0, 0), np.float32)) for text in request.texts or ("",))
    query = replace(parts[0], parts=parts if request.each else ())
    return PreparedWindow(window=bare, query=query, mask=every, complete=every)
