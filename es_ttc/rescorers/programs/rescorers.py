"""Programs as rescorers: one class for each program, whose context is made from a window."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.programs.catalogue import CATALOGUE, REVERSED, Entry
from es_ttc.rescorers.programs.interface import (
    PASSAGE,
    QUERY,
    TOPIC_LENGTH,
    Chunks,
    Context,
    Program,
    ProgramError,
    run,
)
from es_ttc.rescorers.programs.primitives.feedback import interpolate, top_centroid
from es_ttc.vectors.chunks import DocumentChunks, Granularity
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32, TokenVectors

Lexical = Literal["engine", "paper"]


class ProgramParams(Params):
    """Parameters of a program without lexical channels."""


class LexicalParams(ProgramParams):
    """Parameters of a program with lexical channels."""

    lexical: Lexical = Field(
        "engine",
        description="engine: the scores of the first pass are the only lexical channel, so its query should be BM25. "
        "paper: the paper's channels (words, bigrams, and from `crossroundrrf` on coverage and rare words), computed "
        "over the window.",
    )


class ProgramRescorer:
    """A program over the window, which corresponds to the paper's shortlist.

    Z-scores, ranks, medians, centroids and word counts are those of the window. Scores of an encoder's vectors come
    from what ingest stored; only a program that expands queries encodes at query time.
    """

    name: ClassVar[str]
    entry: ClassVar[Entry]
    Params: ClassVar[type[Params]]
    wants: ClassVar[frozenset[Feature]] = frozenset()
    similarity: ClassVar[bool] = False
    granularities: ClassVar[tuple[Granularity, ...]] = ()

    def needs(self, params: ProgramParams) -> frozenset[Feature]:
        """The pooled vectors; what else the program uses: chunks, documents as queries, first-pass scores, encoder."""
        needed = {Feature.POOLED}
        if REVERSED in self.entry.reads:
            needed.add(Feature.REVERSED)
        if self.entry.chunked:
            needed.add(Feature.CHUNKS)
        if self.entry.passes:
            needed.add(Feature.ENCODER)
        if isinstance(params, LexicalParams) and params.lexical == "engine":
            needed.add(Feature.FIRST_PASS)
        return frozenset(needed)

    def score(self, query: Query, window: Window, params: ProgramParams) -> Float32:
        """Return the scores, ``(k,)``, shifted if necessary so that none is negative."""
        scores: Float32 = positive(self.batch([query], window, params))[0]
        return scores

    def batch(
        self,
        queries: Sequence[Query],
        window: Window,
        params: ProgramParams,
        # (q, k) the lexical engine's scores, for several queries; the window's own where None
        lexical_scores: Float32 | None = None,
        # Receives the scores of every channel and round by name, (q, k) each
        channels: dict[str, Float32] | None = None,
    ) -> Float32:
        """Return the program's own scores of several queries on the same documents, ``(q, k)``: the paper's form."""
        assert window.pooled is not None  # noqa: S101 - promised by needs
        from_engine = isinstance(params, LexicalParams) and params.lexical == "engine"
        context = context_of(queries, window, self.granularities, engine_lexical=from_engine)
        if from_engine and lexical_scores is not None:
            context.lexical_scores = lexical_scores
        if channels is not None:
            context.record = channels.__setitem__
        as_queries = window.pooled if window.reversed is None else window.reversed
        context.views = {**context.views, (QUERY, None): as_queries, (PASSAGE, None): window.pooled}
        vectors = np.stack([query.vectors[0] for query in queries])
        return run(self._program(params), vectors, window.pooled, context)

    def detail(self, query: Query, window: Window, params: ProgramParams) -> list[dict[str, Any]]:
        """Return for each document its score in every channel and round, by name."""
        channels: dict[str, Float32] = {}
        self.batch([query], window, params, channels=channels)
        return [
            {"channels": {name: round(float(scores[0, place]), 6) for name, scores in channels.items()}}
            for place in range(len(window))
        ]

    def _program(self, params: ProgramParams) -> Program:  # noqa: ARG002
        return self.entry.program


def positive(scores: Float32) -> Float32:
    """Shift each row that has a negative score so that its minimum is 0: engines allow no negative scores."""
    shifted: Float32 = scores - np.minimum(scores.min(axis=1, keepdims=True, initial=0), 0)
    return shifted


def _class(entry: Entry) -> type[ProgramRescorer]:
    """Return the rescorer's class of one of the paper's programs."""
    summary = (entry.program.__doc__ or "").strip()
    members = {
        "name": entry.name,
        "entry": entry,
        "Params": LexicalParams if entry.lexical else ProgramParams,
        "granularities": entry.granularities,
        "wants": frozenset({Feature.CALIBRATION}) if entry.calibrated else frozenset(),
        "__doc__": (
            f"{entry.title} (section {entry.section} of the paper on programs; c = {entry.cost}).\n\n    {summary}"
        ),
        "__module__": __name__,
    }
    return type(f"{entry.title}Rescorer", (ProgramRescorer,), members)


_CLASSES = {entry.title: _class(entry) for entry in CATALOGUE.values()}
_RESCORERS: Mapping[str, ProgramRescorer] = {one.name: one() for one in _CLASSES.values()}


def __getattr__(title: str) -> type[ProgramRescorer]:
    """Return the class of one of the paper's programs by its title, as in the entry points."""
    if title not in _CLASSES:
        raise AttributeError(f"module [{__name__}] has no attribute [{title}]")
    return _CLASSES[title]


def rescorer_of(name: str) -> ProgramRescorer:
    """Return the rescorer of one of the paper's programs, by its lower-case name."""
    return _RESCORERS[name]


class FeedbackParams(ProgramParams):
    """Parameters of feedback from the best documents."""

    documents: int = Field(3, ge=1, le=1000, description="Number of best documents in the centroid (K).")
    weight: float = Field(0.5, ge=0, le=1, description="Weight w of the centroid; the query's weight is 1 - w.")


class SoftCentroidParams(FeedbackParams):
    """SoftCentroid's constants; the defaults are the paper's universal ones."""

    temperature: float = Field(0.05, gt=0, description="Temperature of the softmax over the best documents' cosines.")


class RocchioParams(FeedbackParams):
    """Rocchio's constants. The defaults are the middle of the paper's grid (K 2, 3, 5, 10; weight .1, .3, .5, .7)."""

    weight: float = Field(0.3, ge=0, le=1, description="Weight w of the centroid; the query's weight is 1 - w.")


class FeedbackRescorer(ProgramRescorer):
    """Cosines with a query that is moved towards the best documents of the window."""

    similarity: ClassVar[bool] = True

    def needs(self, params: ProgramParams) -> frozenset[Feature]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Feature.POOLED})

    def score(self, query: Query, window: Window, params: ProgramParams) -> Float32:
        """Return the cosines, ``(k,)``."""
        scores: Float32 = self.batch([query], window, params)[0]
        return scores


class SoftCentroid(FeedbackRescorer):
    """SoftCentroid (appendix D): `normalise((1 - w) q + w mu)`, mu the softmax-weighted mean of the best documents."""

    name: ClassVar[str] = "softcentroid"
    Params: ClassVar[type[Params]] = SoftCentroidParams

    def _program(self, params: ProgramParams) -> Program:
        assert isinstance(params, SoftCentroidParams)  # noqa: S101 - validated by it
        return feedback(params.documents, params.weight, params.temperature)


class Rocchio(FeedbackRescorer):
    """Classical Rocchio without negatives, which is VPRF (appendix D): the unweighted mean of the best documents."""

    name: ClassVar[str] = "rocchio"
    Params: ClassVar[type[Params]] = RocchioParams

    def _program(self, params: ProgramParams) -> Program:
        assert isinstance(params, RocchioParams)  # noqa: S101 - validated by it
        return feedback(params.documents, params.weight)


def feedback(depth: int, weight: float, temperature: float | None = None) -> Program:
    """Return the program of the query moved to its best documents' centroid; without temperature a plain mean."""

    def program(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
        return ctx.note("feedback", interpolate(Q, top_centroid(D, S, depth, temperature), weight) @ D.T)

    return program


softcentroid = feedback(3, 0.5, 0.05)  # SoftCentroid at the paper's universal default: K = 3, alpha = 0.5, tau = 0.05


def context_of(
    queries: Sequence[Query], window: Window, granularities: Collection[Granularity], *, engine_lexical: bool
) -> Context:
    """Return the context of some queries over one window; with `engine_lexical` there must be one query."""
    texts = ["" for _ in window.ids] if window.chunks is None else [own.text for own in window.chunks]
    stored: dict[Granularity, Chunks] = {}
    views: dict[tuple[str, int | None], Float32] = {}
    if window.chunks is not None:
        stored = {name: _side_by_side(window.chunks, name) for name in granularities}
        views[PASSAGE, TOPIC_LENGTH] = _stacked([own.topic for own in window.chunks])
    return Context(
        [query.text for query in queries],
        texts,
        [str(place) for place in range(len(queries))],
        window.ids,
        queries[0].encode or _no_encoder,
        stored=stored,
        views=views,
        calibration=window.calibration,
        lexical_scores=window.first_pass[None] if engine_lexical else None,
    )


def _side_by_side(documents: Sequence[DocumentChunks], name: Granularity) -> Chunks:
    counts = [len(own.vectors[name]) for own in documents]
    texts = chain.from_iterable((own.text[start:end] for start, end in own.spans[name].tolist()) for own in documents)
    return Chunks(
        _stacked([own.vectors[name] for own in documents]),
        np.concatenate(([0], np.cumsum(counts, dtype=np.intp))),
        list(texts),
    )


def _stacked(matrices: Sequence[TokenVectors]) -> Float32:
    """Put stored rows next to each other; widened at once if all have the same type, as within one index."""
    if len({matrix.codec for matrix in matrices}) > 1:
        return np.concatenate([dequantise(matrix) for matrix in matrices])
    scales = [matrix.scales for matrix in matrices if matrix.scales is not None]
    values = np.concatenate([matrix.values for matrix in matrices])
    return dequantise(TokenVectors(values, np.concatenate(scales) if scales else None, coded=matrices[0].coded))


def _no_encoder(
    texts: Sequence[str],
    adapter: str = PASSAGE,  # noqa: ARG001 - the interface's arguments
    dimensions: int | None = None,  # noqa: ARG001
    max_length: int | None = None,  # noqa: ARG001
) -> Float32:
    raise ProgramError(f"the program encodes {len(texts)} texts, and its declaration names no encoder")
