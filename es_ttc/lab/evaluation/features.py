"""A collection's documents and queries as arrays: the contents of an index, in memory and in the index's codec."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.base import Encoder
from es_ttc.encoders.queries import encode
from es_ttc.errors import ConfigurationError
from es_ttc.index.ingest.encode import DocumentFeatures, encode_documents
from es_ttc.index.mappings.fields import stored_scales
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Document
from es_ttc.lab.evaluation.rankings import Positions, ReportStage, silent
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.programs.encoding import encode_fn
from es_ttc.retrievers.base import Vectors
from es_ttc.retrievers.memory import Matrix
from es_ttc.vectors.chunks import DocumentChunks, no_chunks
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

_BATCH = 64  # texts per call of the encoder: enough to sort by length, few enough to see progress


@dataclass(frozen=True, slots=True)
class CorpusFeatures:
    """The features of all documents, in the collection's order."""

    ids: Sequence[str]
    # (n,) bool, False for a document without text, which has no features and is never scored
    present: NDArray[np.bool_]
    pooled: Float32  # (n, d) float32 unit rows; zero for a document without features
    tokens: Sequence[TokenVectors] = ()  # one value per document; empty if no method needs token vectors
    norms: Sequence[ScaleNorms] = ()  # one value per document; empty if no method needs token vectors
    chunks: Sequence[DocumentChunks] = ()  # one value per document; empty if no method needs chunks
    spans: Sequence[Float32] = ()  # one (m, d) float32 matrix per document; empty if no method searches spans
    truncated: int = 0  # number of documents whose text has more tokens than the spec allows
    # (n, d) float32 unit rows, the documents encoded as queries; None if the spec does not store them
    reversed: Float32 | None = None

    def window(self, documents: Positions, first_pass: Float32, features: frozenset[Feature]) -> Window:
        """Return documents that are present, with their first-pass scores, as a window that carries some features."""
        return Window(
            ids=[self.ids[i] for i in documents],
            first_pass=first_pass,
            pooled=self.pooled[documents] if Feature.POOLED in features else None,
            tokens=[self.tokens[i] for i in documents] if Feature.TOKENS in features else None,
            norms=[self.norms[i] for i in documents] if Feature.NORMS in features and self.norms else None,
            chunks=[self.chunks[i] for i in documents] if Feature.CHUNKS in features else None,
            reversed=None if self.reversed is None or Feature.REVERSED not in features else self.reversed[documents],
        )

    def matrix(self, among: Vectors) -> Matrix:
        """Return the vectors of one kind for a search over arrays."""
        match among:
            case Vectors.POOLED:
                return Matrix.of(self.pooled)
            case Vectors.SPANS:
                parts = self.spans
            case Vectors.TOKENS:
                parts = [dequantise(tokens) for tokens in self.tokens]
        if len(parts) != len(self.ids):
            raise ConfigurationError(f"the collection's [{among}] are searched, and were not encoded")
        return Matrix(np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts]))


def encode_corpus(
    documents: Sequence[Document], spec: IndexSpec, encoder: Encoder, progress: ReportStage = silent
) -> CorpusFeatures:
    """Return the features that ingest would write for documents to an index of this spec."""
    features: list[DocumentFeatures] = []
    progress("encoding documents", 0, len(documents))
    for start in range(0, len(documents), _BATCH):
        batch = [document.source for document in documents[start : start + _BATCH]]
        features += encode_documents(batch, spec, encoder)
        progress("encoding documents", len(features), len(documents))
    dims = spec.encoder.dims
    no_vectors = np.zeros((0, dims), dtype=np.float32)
    nothing = TokenVectors(np.zeros((0, spec.encoder.of_tokens.dims), dtype=np.float32))
    no_norms = ScaleNorms(stored_scales(spec), np.zeros((len(stored_scales(spec)), 0), dtype=np.float32))
    stored = spec.tokens != "none"
    return CorpusFeatures(
        ids=[document.id for document in documents],
        present=np.array([feature.pooled is not None for feature in features]),
        pooled=_stacked([feature.pooled for feature in features], dims),
        tokens=[feature.tokens.vectors if feature.tokens else nothing for feature in features] if stored else (),
        norms=[feature.tokens.norms if feature.tokens else no_norms for feature in features] if stored else (),
        chunks=[feature.chunks or no_chunks(dims) for feature in features] if spec.chunks else (),
        spans=[feature.spans.vectors if feature.spans else no_vectors for feature in features] if spec.spans else (),
        truncated=sum(feature.truncated for feature in features),
        reversed=_stacked([feature.reversed for feature in features], dims) if spec.reversed else None,
    )


def _stacked(vectors: Sequence[Float32 | None], dims: int) -> Float32:
    return np.stack([np.zeros(dims, np.float32) if vector is None else vector for vector in vectors])


def encode_queries(
    texts: Sequence[str], encoder: Encoder, *, tokens: bool, progress: ReportStage = silent
) -> list[Query]:
    """Return queries encoded as in the gateway."""
    queries: list[Query] = []
    for start in range(0, len(texts), _BATCH):
        batch = encode([[text] for text in texts[start : start + _BATCH]], encoder, tokens=tokens)
        queries += [replace(query, encode=encode_fn(encoder)) for query in batch]
        progress("encoding queries", len(queries), len(texts))
    return queries
