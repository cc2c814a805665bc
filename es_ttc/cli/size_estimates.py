"""What features will take on disk, in a sentence, before they are written."""

from es_ttc.cli.common import mebibytes
from es_ttc.index.ingest.size_estimate import SizeEstimate, token_bytes
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.vectors.codecs import QUANTISED_CODECS

_KIB = 2**10
_MINUTE = 60
_HOUR = 3600
_GB = 10**9
_MILLION = 10**6
SAMPLE_TEXT = 12 * (
    "A sentence of some twenty words stands for the documents that are going to be stored in this index later on. "
)
"""A text of some 250 tokens, for an estimate where there is no document yet."""


def size_sentence(
    size: SizeEstimate, spec: IndexSpec, documents: int | None = None, source_bytes: int | None = None
) -> str:
    """Return what features take: a document's, those of all documents, those of a million, and with other options.

    Args:
        documents: Number of documents with text; None if it is not known.
        source_bytes: Bytes of the index that gets the features; None if it is not known.
    """
    tokens = f" with its {size.tokens:,.0f} token vectors" if size.tokens else ""
    parts = [f"features take about {size.merged / _KIB:,.1f} KiB a document{tokens}"]
    if documents is not None:
        every = documents * size.merged
        beside = f" (x {every / source_bytes:,.1f} of the index's {mebibytes(source_bytes)})" if source_bytes else ""
        took = f" and {_duration(documents * size.seconds)} of encoding here"
        parts.append(f"{mebibytes(round(every))}{beside}{took} for all {documents:,}")
    options = "".join(f", with {option} {per_million(merged)}" for option, merged in _others(size, spec))
    parts.append(f"a million such documents take {per_million(size.merged)}{options}")
    return "; ".join([*parts, f"before segments are merged {size.at_once / size.merged:.1f} times that"])


def _duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / _MINUTE:,.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:,.1f} h"


def per_million(merged: float) -> str:
    """Return what a million documents of so many bytes take."""
    gigabytes = merged * _MILLION / _GB
    return f"{gigabytes:,.0f} GB" if gigabytes >= 10 else f"{gigabytes:.1f} GB"


def _others(size: SizeEstimate, spec: IndexSpec) -> list[tuple[str, float]]:
    """Return options that are not chosen, with the bytes of a document."""
    if not size.tokens or spec.tokens != "packed":
        return []
    own = token_bytes(spec)
    found = [
        (f"--codec {codec}", size.merged + size.tokens * (token_bytes(spec, codec) - own))
        for codec in reversed(QUANTISED_CODECS)
        if codec != spec.codec
    ]
    return [*found, ("--tokens none", size.merged - size.tokens * own)]
