"""The names of the codecs of stored token vectors. Nothing here imports numpy."""

from typing import Literal, get_args

StoredCodec = Literal["float16", "int8", "int4", "int2"]
STORED_CODECS: tuple[StoredCodec, ...] = get_args(StoredCodec)  # from the finest to the coarsest
QUANTISED_CODECS = STORED_CODECS[1:]
DEFAULT_CODEC: StoredCodec = "int4"
