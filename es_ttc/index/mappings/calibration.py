"""The calibration of an index: statistics of sample queries, in its mapping's ``_meta.ttc.calibration``.

It consists of mean and main directions of the queries' vectors, for their encoder. It is stored in the mapping, so
it is copied with the index, and is valid for later documents too.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import ConfigurationError
from es_ttc.index.mappings.indices import put_own_meta
from es_ttc.index.mappings.spec import CALIBRATION, IndexSpec
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.packed import pack_tokens, unpack_tokens
from es_ttc.vectors.tokens import TokenVectors

RANK = 48
"""Maximum number of main directions: with more queries than this, small ones are dropped. 48 x 384 numbers of two bytes
are 36 kB, which every node of a cluster keeps in memory."""

LEAST_QUERIES = 2


async def calibrate(engine: Engine, index: str, texts: Sequence[str], encoder: Encoder) -> Moments:
    """Write a calibration into an index's mapping, in place of an older one, and return it as it is read back."""
    mapping = (await engine.mapping(index))[index]
    spec = IndexSpec.from_mapping(index, mapping)
    if spec.encoder.key != encoder.identity.key:
        raise ConfigurationError(
            f"index [{index}] was encoded by [{spec.encoder.key}], and this encoder is [{encoder.identity.key}]: "
            "name the index's with --encoder"
        )
    vectors = encoder.encode(list(texts), role="query", tokens=False).pooled
    vectors = vectors[vectors.any(axis=1)]
    if len(vectors) < LEAST_QUERIES:
        raise ConfigurationError(f"a calibration needs {LEAST_QUERIES} queries with text at least, got {len(vectors)}")
    meta = calibration_meta(Moments.of(vectors, RANK), spec.encoder.key)
    await put_own_meta(engine, index, CALIBRATION, meta)
    read = calibration_of(meta, spec.encoder.key)
    assert read is not None  # noqa: S101 - just written for this encoder
    return read


def calibration_meta(moments: Moments, encoder: str) -> dict[str, str]:
    """Return the JSON-ready value of ``_meta.ttc.calibration``."""
    rows = np.concatenate((moments.mean[None], moments.factor)).astype(np.float16)
    blob = base64.b64encode(pack_tokens(TokenVectors(rows))).decode("ascii")
    return {"encoder": encoder, "queries": str(moments.size), "moments": blob}


def calibration_of(meta: Mapping[str, Any], encoder: str) -> Moments | None:
    """Return the calibration that :func:`calibration_meta` wrote; None if there is none for this encoder."""
    if not meta or meta.get("encoder") != encoder:
        return None
    try:
        rows = unpack_tokens(base64.b64decode(meta["moments"], validate=True)).values.astype(np.float32)
        size = int(meta["queries"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"calibration: {type(error).__name__} {error}") from error
    if not len(rows):
        raise ValueError("calibration: no mean")
    return Moments(rows[0], rows[1:], size)
