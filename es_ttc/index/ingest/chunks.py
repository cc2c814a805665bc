"""Chunks of documents, cut and encoded at ingest, so that programs need no encoder for them."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import Span
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.rescorers.programs.interface import TOPIC_LENGTH
from es_ttc.rescorers.programs.splitting import split
from es_ttc.vectors.chunks import GRANULARITIES, DocumentChunks
from es_ttc.vectors.quantise import quantise


def encode_chunks(
    texts: Sequence[str], fields: Sequence[Sequence[Span]], spec: IndexSpec, encoder: Encoder
) -> list[DocumentChunks]:
    """Return the chunks of documents, in order, as float16 if tokens are, else as int8."""
    codec = spec.codec if spec.codec == "float16" else "int8"
    splits = [split(text, [(span.start, span.end) for span in own]) for text, own in zip(texts, fields, strict=True)]
    topics = encoder.shortened(TOPIC_LENGTH).encode(texts, role="document", tokens=False).pooled
    spans = {name: [own.of(name) for own in splits] for name in GRANULARITIES}
    vectors = {}
    for name in GRANULARITIES:
        chunks = [text[start:end] for text, own in zip(texts, spans[name], strict=True) for start, end in own]
        encoded = encoder.encode(chunks, role="document", tokens=False).pooled
        bounds = np.concatenate(([0], np.cumsum([len(own) for own in spans[name]], dtype=np.intp)))
        vectors[name] = [quantise(encoded[start:end], codec) for start, end in pairwise(bounds)]
    return [
        DocumentChunks(
            text,
            {name: np.array(spans[name][place], np.int32).reshape(-1, 2) for name in GRANULARITIES},
            {name: vectors[name][place] for name in GRANULARITIES},
            quantise(topics[place : place + 1], codec),
        )
        for place, text in enumerate(texts)
    ]
