"""A codebook learned from the first documents of an input, before the index exists."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np

from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import Document, compose
from es_ttc.vectors.packed import pack_codebook
from es_ttc.vectors.residual import Bits, learn
from es_ttc.vectors.tokens import Float32

DOCUMENTS = 1000
"""Maximum number of documents in the sample: with some 64 tokens each, more than 256 centroids need."""

_TOKENS_A_DOCUMENT = 64
_BATCH = 32


def learn_codebook(
    documents: Iterable[Document],
    text_fields: Sequence[str],
    encoder: Encoder,
    bits: Bits,
    report: Callable[[int], None] = lambda _done: None,
) -> bytes:
    """Return a packed codebook, learned from the tokens of the first documents.

    Raises:
        InvalidRequest: No document has text.
        EncoderError: A text could not be encoded.
    """
    texts = [compose(document, text_fields)[0] for document in islice(documents, DOCUMENTS)]
    sample: list[Float32] = []
    for start in range(0, len(texts), _BATCH):
        encoded = encoder.encode(texts[start : start + _BATCH]).tokens
        sample.extend(rows[:: max(1, len(rows) // _TOKENS_A_DOCUMENT)] for rows in encoded)
        report(min(start + _BATCH, len(texts)))
    vectors = np.concatenate(sample) if sample else np.zeros((0, 0), dtype=np.float32)
    if not len(vectors):
        raise InvalidRequest(
            f"no document of the sample has text in {','.join(text_fields)}: name a file of your documents, or the "
            "right fields with --text-fields"
        )
    return pack_codebook(learn(vectors, bits))
