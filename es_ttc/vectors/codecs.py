"""The names of the codecs of stored token vectors, and the profiles of storage. Nothing here imports numpy."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

StoredCodec = Literal["float16", "int8", "int4", "int2"]
STORED_CODECS: tuple[StoredCodec, ...] = get_args(StoredCodec)  # from the finest to the coarsest
DEFAULT_CODEC: StoredCodec = "int4"

SkipTokens = Literal["none", "punctuation", "stop_words", "repeated_words"]
"""Tokens without a vector, from the fewest to the most; each adds to those before it."""
SKIP_TOKENS: tuple[SkipTokens, ...] = get_args(SkipTokens)


class Storage(NamedTuple):
    """How packed token vectors are stored."""

    codec: StoredCodec
    skip_tokens: SkipTokens = "none"


Profile = Literal["exact", "default", "small"]
PROFILES: Mapping[Profile, Storage] = {
    "exact": Storage("int8"),
    "default": Storage(DEFAULT_CODEC),
    "small": Storage("int2", "stop_words"),
}
"""Storage by name, from the largest to the smallest; what each loses: docs/results/storage.md."""
