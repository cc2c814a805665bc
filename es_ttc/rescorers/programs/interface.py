"""The interface of Test-Time Compute programs (section 3.1), kept literally: ``P(Q, D, S, ctx) -> S'``.

A program may use the four capabilities of the paper's context: ``ctx.encode_fn``, the texts and the ids. The other
methods return vectors made at ingest if there are some, else they call ``encode_fn``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import EsTtcError
from es_ttc.rescorers.programs.primitives.lexical import LexicalIndex
from es_ttc.rescorers.programs.primitives.matching import best_chunk
from es_ttc.rescorers.programs.primitives.moments import Moments
from es_ttc.rescorers.programs.primitives.vectors import finite
from es_ttc.rescorers.programs.splitting import Split, split
from es_ttc.vectors.chunks import Granularity
from es_ttc.vectors.encode import PASSAGE as PASSAGE
from es_ttc.vectors.encode import EncodeFn as EncodeFn
from es_ttc.vectors.tokens import Float32

QUERY: Final = "retrieval.query"
MATCHING: Final = "text-matching"
CLASSIFICATION: Final = "classification"
ADAPTERS: tuple[str, ...] = (QUERY, PASSAGE, MATCHING, CLASSIFICATION)
"""The paper's adapters. An encoder without adapters gives one view for all of them (section 3.1)."""

TOPIC_LENGTH = 128  # tokens of the topic-level channel (B.4)


class ProgramError(EsTtcError):
    """A program failed, or did not return finite scores of the right shape."""

    type = "ttc_program_exception"


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of n documents at one granularity, side by side; m in all."""

    vectors: Float32  # (m, d) float32 unit rows
    # (n + 1,): document i owns chunks `starts[i]` to `starts[i + 1]` (exclusive); it may own none
    starts: NDArray[np.intp]
    texts: Sequence[str]


@dataclass(slots=True)
class Context:
    """A program's data in addition to the matrices; q queries, n documents."""

    query_texts: Sequence[str]
    doc_texts: Sequence[str]
    query_ids: Sequence[str]
    doc_ids: Sequence[str]
    encode_fn: EncodeFn
    # The documents' chunks as spans of their texts; None: they are computed when needed
    splits: Sequence[Split] | None = None
    stored: Mapping[Granularity, Chunks] = field(default_factory=dict)  # chunks made at ingest, by granularity
    # Whole documents encoded in other ways at ingest, by (adapter, length)
    views: Mapping[tuple[str, int | None], Float32] = field(default_factory=dict)
    calibration: Moments | None = None  # a sample of queries for statistics along queries; None: the batch itself
    # (q, n) scores of a lexical engine, which are then the only lexical channel; None for the paper's own channels
    lexical_scores: Float32 | None = None
    record: Callable[[str, Float32], None] | None = None  # receives the name and the (q, n) scores of every channel
    index_texts: int = 0  # counts the encoded texts that depend on documents only, which an index can store
    _chunks: dict[Granularity, Chunks] = field(default_factory=dict)
    _lexicon: LexicalIndex | None = None

    def chunks(self, granularity: Granularity) -> Chunks:
        """Return the documents' chunks of one granularity, encoded once."""
        if granularity in self.stored:
            return self.stored[granularity]
        if granularity not in self._chunks:
            self._chunks[granularity] = self._encoded(granularity)
        return self._chunks[granularity]

    def view(self, documents: Float32, adapter: str, max_length: int | None = None) -> Float32:
        """Return whole documents under another adapter or length, ``(n, d)``; their empty rows stay empty."""
        if (adapter, max_length) in self.views:
            return self.views[adapter, max_length]
        self.index_texts += len(self.doc_texts)
        encoded = finite(self.encode_fn(self.doc_texts, adapter=adapter, max_length=max_length))
        encoded[~documents.any(axis=1)] = 0
        return encoded

    def expand(self, queries: Float32, anchors: NDArray[np.intp], adapter: str = QUERY) -> Float32:
        """Encode each query with its anchor's best-matching sentence behind it (B.7), ``(q, d)``."""
        sentences = self.chunks("sentences")
        texts = []
        for row, (text, anchor) in enumerate(zip(self.query_texts, anchors, strict=True)):
            own = slice(sentences.starts[anchor], sentences.starts[anchor + 1])
            similarities = (sentences.vectors[own] @ queries[row])[None]
            local = np.array([0, similarities.shape[1]])
            best = int(best_chunk(similarities, local, np.zeros(1, np.intp))[0])
            texts.append(text if best < 0 else f"{text} {sentences.texts[own.start + best]}")
        return finite(self.encode_fn(texts, adapter=adapter))

    def lexicon(self) -> LexicalIndex:
        """Return the words of the documents, indexed once."""
        if self._lexicon is None:
            self._lexicon = LexicalIndex(self.doc_texts)
        return self._lexicon

    def note(self, name: str, channel: Float32) -> Float32:
        """Pass a channel to :attr:`record`, and return it."""
        if self.record is not None:
            self.record(name, channel)
        return channel

    def _encoded(self, granularity: Granularity) -> Chunks:
        if self.splits is None:
            self.splits = [split(text) for text in self.doc_texts]
        spans = [own.of(granularity) for own in self.splits]
        texts = [text[a:b] for text, own in zip(self.doc_texts, spans, strict=True) for a, b in own]
        starts = np.concatenate(([0], np.cumsum([len(own) for own in spans], dtype=np.intp)))
        self.index_texts += len(texts)
        return Chunks(finite(self.encode_fn(texts, adapter=PASSAGE)), starts, texts)


Program = Callable[[Float32, Float32, Float32, Context], Float32]
"""``P(Q, D, S, ctx)``: ``(q, d)`` queries, ``(n, d)`` documents, ``(q, n)`` cosines -> ``(q, n)`` scores."""


def run(program: Program, queries: Float32, documents: Float32, context: Context) -> Float32:
    """Run a program on vectors as they come and return its scores, ``(q, n)`` float32, all finite.

    Rows of the input that hold a NaN count as zero vectors.

    Args:
        program: Ours or anyone's.
        queries: ``(q, d)`` unit rows.
        documents: ``(n, d)`` unit rows.
        context: Their texts and the encoder.

    Raises:
        ProgramError: It returned another shape, or a value that is not finite.
    """
    Q, D = finite(queries), finite(documents)
    shape = (len(Q), len(D))
    if 0 in shape:
        return np.zeros(shape, np.float32)
    scores = np.asarray(program(Q, D, Q @ D.T, context))
    name = getattr(program, "__name__", type(program).__name__)
    if scores.shape != shape or not np.issubdtype(scores.dtype, np.floating):
        raise ProgramError(f"program [{name}] must return floats of shape {shape}, got {scores.dtype} {scores.shape}")
    if not np.isfinite(scores).all():
        raise ProgramError(f"program [{name}] returned a score that is not finite")
    return scores.astype(np.float32)
