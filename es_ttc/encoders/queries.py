"""The vectors of queries: pooled and token vectors, and the mean of a text's words.

The mean of words is what compares with tokens where the pooled vector is no mean of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from es_ttc.encoders.base import Encoder, Encodings
from es_ttc.rescorers.base import Query
from es_ttc.vectors.tokens import Float32


def encode(queries: Sequence[Sequence[str]], encoder: Encoder, *, tokens: bool) -> list[Query]:
    """Return encoded queries, each of one text or several; token vectors are those of its first text."""
    late, words = encoder.identity.late_interaction, needs_words(encoder)
    encodings = encoder.encode([*chain(*queries)], role="query", tokens=tokens or late or words)
    means = word_means(encodings) if words else None
    of_texts = iter(
        [
            Query(
                text,
                encodings.pooled[place : place + 1],
                encodings.tokens[place] if tokens or late else None,
                late=late,
                word_means=None if means is None else means[place : place + 1],
                token_spans=encodings.offsets[place] if tokens or late else None,
                encoded_shares=encodings.encoded_shares[place : place + 1],
            )
            for place, text in enumerate(chain(*queries))
        ]
    )
    return [_together([*islice(of_texts, len(texts))]) for texts in queries]


def _together(parts: Sequence[Query]) -> Query:
    """Return one query of the queries of its texts."""
    first, *others = parts
    if not others:
        return first
    vectors = np.concatenate([part.vectors for part in parts])
    means = [part.word_means for part in parts if part.word_means is not None]
    return replace(
        first,
        vectors=vectors,
        word_means=np.concatenate(means) if means else None,
        encoded_shares=tuple(chain.from_iterable(part.encoded_shares for part in parts)),
        parts=tuple(parts),
    )


def needs_words(encoder: Encoder) -> bool:
    """Return whether queries of an encoder carry the mean of their words: its pooled vector is no mean of tokens.

    A server of vLLM gives pooled vectors or token vectors, not both, so queries there do without.
    """
    return not encoder.identity.averages and not encoder.backend.startswith("vllm")


def word_means(encodings: Encodings) -> Float32:
    """Return the mean of each text's own tokens at unit length, ``(n, d)``.

    Special tokens and those of the prompt are left out: they cover no characters. A text without words of its own has
    its pooled vector, or zeros if that is of another encoder.
    """
    means = encodings.pooled.copy()
    dims = next((rows.shape[1] for rows in encodings.tokens if len(rows)), means.shape[1])
    if dims != means.shape[1]:
        means = np.zeros((len(means), dims), np.float32)
    for place, (rows, offsets) in enumerate(zip(encodings.tokens, encodings.offsets, strict=True)):
        total = rows[offsets[:, 0] < offsets[:, 1]].sum(axis=0)
        length = float(np.linalg.norm(total))
        if length:
            means[place] = total / length
    return means
