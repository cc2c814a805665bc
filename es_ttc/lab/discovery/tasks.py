"""Tasks for programs: queries, documents and the features of an index, as arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.lab.evaluation.rankings import Progress, silent, top
from es_ttc.rescorers.programs.encoding import encode_fn
from es_ttc.sandbox.process import Inputs, SharedMoments
from es_ttc.sandbox.shared import Shared, SharedChunks, SharedTexts
from es_ttc.vectors.chunks import GRANULARITIES, Granularity
from es_ttc.vectors.encode import EncodeFn
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32

METRIC = "ndcg@10"
_DEPTH = 10


@dataclass(frozen=True)
class Task:
    """One collection, prepared for programs; q queries, n documents.

    Attributes:
        qrels: Relevance judgements by query id, in the order of the queries.
        queries: ``(q, d)`` float32 unit rows.
        documents: ``(n, d)`` float32 unit rows.
        chunks: By granularity.
        chunk_texts: By granularity.
        topics: ``(n, d)``: the documents' openings.
        reversed: ``(n, d)``: the documents encoded as queries; None for an encoder that does not distinguish roles.
        sample: ``(m, d)`` other queries as a sample of an index's queries (``ctx.calibration``); None: the queries
            themselves, as in the paper.
    """

    name: str
    split: str
    query_texts: Sequence[str]
    document_ids: Sequence[str]
    qrels: Mapping[str, Mapping[str, int]]
    queries: Float32
    documents: Float32
    document_texts: SharedTexts
    chunks: Mapping[Granularity, SharedChunks]
    chunk_texts: Mapping[Granularity, SharedTexts]
    topics: Shared
    encode: EncodeFn
    reversed: Shared | None = None
    sample: Float32 | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of queries and documents."""
        return self.queries.shape[0], self.documents.shape[0]

    @cached_property
    def inputs(self) -> Inputs:
        """The inputs of programs, in shared memory."""
        moments = None if self.sample is None else Moments.of(self.sample)
        return Inputs(
            self.query_texts,
            Shared.of(self.queries),
            Shared.of(self.documents),
            (*self.size, self.queries.shape[1]),
            None
            if moments is None
            else SharedMoments(Shared.of(moments.mean), Shared.of(moments.factor), len(moments.factor), moments.size),
        )

    @cached_property
    def baseline(self) -> NDArray[np.float64]:
        """The metric of each query under P0, the plain cosine, ``(q,)``."""
        return self.measure(self.queries @ self.documents.T)

    def measure(self, scores: Float32) -> NDArray[np.float64]:
        """Return the metric of each query, ``(q,)``, of finite scores, ``(q, n)``; ties in the documents' order."""
        rankings = {
            query: [self.document_ids[place] for place in top(row, _DEPTH).documents]
            for query, row in zip(self.qrels, scores, strict=True)
        }
        return score_by(METRIC, self.qrels, rankings)


def spec_of_programs(collection: Collection, encoder: Encoder) -> IndexSpec:
    """Return the spec of an index that stores what programs read, and nothing else."""
    return IndexSpec(
        encoder.identity,
        text_fields=collection.text_fields,
        tokens="none",
        codec="float16",
        chunks=True,
        reversed=encoder.distinguishes_roles,
    )


def task_of(collection: Collection, encoder: Encoder, progress: Progress = silent) -> Task:
    """Encode a collection as ingest does; documents without text are left out."""
    spec = spec_of_programs(collection, encoder)
    features = encode_corpus(collection.documents, spec, encoder, progress)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=False, progress=progress)
    present = np.flatnonzero(features.present).tolist()
    texts = [compose(collection.documents[place].source, ("title", "text"))[0] for place in present]
    return Task(
        collection.name,
        collection.split,
        list(collection.queries.values()),
        [features.ids[place] for place in present],
        collection.qrels,
        np.stack([query.vectors[0] for query in queries]).astype(np.float32),
        features.pooled[present].astype(np.float32),
        SharedTexts.of(texts),
        {name: _pieces(features, present, name) for name in GRANULARITIES},
        {name: _chunk_texts(features, present, name) for name in GRANULARITIES},
        Shared.of(np.concatenate([dequantise(features.chunks[place].topic) for place in present])),
        encode_fn(encoder),
        None if features.reversed is None else Shared.of(features.reversed[present]),
    )


def _pieces(features: CorpusFeatures, present: Sequence[int], name: Granularity) -> SharedChunks:
    chunks = [features.chunks[place] for place in present]
    vectors = np.concatenate([dequantise(own.vectors[name]) for own in chunks])
    starts = np.concatenate(([0], np.cumsum([len(own.vectors[name]) for own in chunks], dtype=np.int64)))
    return SharedChunks(Shared.of(vectors), Shared.of(starts), len(vectors))


def _chunk_texts(features: CorpusFeatures, present: Sequence[int], name: Granularity) -> SharedTexts:
    chunks = [features.chunks[place] for place in present]
    return SharedTexts.of([own.text[start:end] for own in chunks for start, end in own.spans[name].tolist()])
