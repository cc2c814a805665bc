"""What features will take on disk, in a sentence, before they are written."""

from collections.abc import Sequence

from rich.table import Table

from es_ttc.cli.common import mebibytes
from es_ttc.cli.tables import table
from es_ttc.index.ingest.proposal import FieldDescription
from es_ttc.index.ingest.size_estimate import SizeEstimate
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.vectors.codecs import PROFILES

_KIB = 2**10
_MINUTE = 60
_HOUR = 3600
_GB = 10**9
_MILLION = 10**6
SAMPLE_TEXT = 12 * (
    "A sentence of some twenty words stands for the documents that are going to be stored in this index later on. "
)
"""A text of some 250 tokens, for an estimate where there is no document yet."""


def longer(documents: int, tokens_read: int) -> str:
    """Return how many documents are not read whole, as a part of a sentence."""
    verb = "is" if documents == 1 else "are"
    return f"{documents:,} {verb} longer than the {tokens_read:,} tokens that are read (--max-tokens)"


def _longer_of_sample(size: SizeEstimate, spec: IndexSpec) -> str:
    return f"; of {size.sample} sampled documents {longer(size.truncated, spec.tokens_read)}" if size.truncated else ""


def size_sentence(
    size: SizeEstimate, spec: IndexSpec, documents: int | None = None, source_bytes: int | None = None
) -> str:
    """Return what features take: a document's, those of all documents, those of a million, and with other options.

    Args:
        documents: Number of documents with text; None if it is not known.
        source_bytes: Bytes of the index that gets the features; None if it is not known.
    """
    tokens = f" with {size.vectors:,.0f} vectors of its {size.tokens:,.0f} tokens" if size.vectors else ""
    parts = [f"features take about {size.merged / _KIB:,.1f} KiB a document{tokens}"]
    if documents is not None:
        every = documents * size.merged
        beside = f" (x {every / source_bytes:,.1f} of the index's {mebibytes(source_bytes)})" if source_bytes else ""
        took = f" and {_duration(documents * size.seconds)} of encoding here"
        parts.append(f"{mebibytes(round(every))}{beside}{took} for all {documents:,}")
    options = "".join(f", with {option} {per_million(other.merged)}" for option, other in size.others.items())
    parts.append(f"a million such documents take {per_million(size.merged)}{options}")
    parts.append(f"before segments are merged {size.at_once / size.merged:.1f} times that")
    return "; ".join(parts) + _longer_of_sample(size, spec)


def _duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / _MINUTE:,.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:,.1f} h"


def per_million(merged: float) -> str:
    """Return what a million documents of so many bytes take."""
    gigabytes = merged * _MILLION / _GB
    return f"{gigabytes:,.0f} GB" if gigabytes >= 10 else f"{gigabytes:.1f} GB"


def described_storage(spec: IndexSpec) -> str:
    """Return how an index stores token vectors, in a few words."""
    if spec.tokens != "packed":
        return f"--tokens {spec.tokens}"
    name = next((name for name, storage in PROFILES.items() if storage == (spec.codec, spec.skip_tokens)), None)
    skipped = "" if spec.skip_tokens == "none" else f" --skip-tokens {spec.skip_tokens}"
    return f"--storage {name}" if name else f"--codec {spec.codec}{skipped}"


def time_sentence(size: SizeEstimate, spec: IndexSpec, documents: int, source_bytes: int | None) -> str:
    """Return how many documents are encoded, how long that takes, and the size of their index."""
    took = _duration(documents * size.seconds)
    own = "" if source_bytes is None else f"; the index itself takes {mebibytes(source_bytes)}"
    every = f"{documents:,} documents with text, {size.tokens:,.0f} tokens each: {took} of encoding here{own}"
    return every + _longer_of_sample(size, spec)


def fields_table(fields: Sequence[FieldDescription]) -> Table:
    """Return a table of the text fields, as the first documents have them."""
    rows = [[one.name, ", ".join(one.languages), str(one.words), "HTML" * one.html] for one in fields]
    return table(["text field", "language", "words", "markup"], rows)


def size_table(size: SizeEstimate, chosen: str, documents: int) -> Table:
    """Return a table of what features take with the chosen options and with others, the smallest first."""
    sizes = sorted([(f"{chosen} *", size), *size.others.items()], key=lambda item: item[1].merged)
    rows = [
        [
            option,
            f"{one.token_bytes / size.tokens:,.0f}" if size.tokens else "0",
            f"{one.merged / _KIB:,.1f} KiB",
            mebibytes(round(documents * one.merged)),
            per_million(one.merged),
            f"x {one.at_once / one.merged:.1f}",
        ]
        for option, one in sizes
    ]
    columns = ["bytes a token", "a document", f"all {documents:,}", "a million", "until merged"]
    shown = table(["stored (* chosen)", *columns], rows)
    shown.columns[0].no_wrap = True
    return shown
