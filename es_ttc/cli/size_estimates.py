"""What features will take on disk, in a sentence, before they are written."""

from typing import TYPE_CHECKING

from es_ttc.cli.common import mebibytes

if TYPE_CHECKING:
    from es_ttc.index.ingest.size_estimate import SizeEstimate
    from es_ttc.index.mappings.spec import IndexSpec

_KIB = 2**10
SAMPLE_TEXT = 12 * (
    "A sentence of some twenty words stands for the documents that are going to be stored in this index later on. "
)
"""A text of some 250 tokens, for an estimate where there is no document yet."""


def size_sentence(size: "SizeEstimate", spec: "IndexSpec", documents: int | None = None) -> str:
    """Return the size of a document's features, of all documents' if their number is known, and what is less."""
    tokens = f" with its {size.tokens:,.0f} token vectors" if size.tokens else ""
    one = f"features take about {size.merged / _KIB:,.1f} KiB a document{tokens}"
    if documents is not None:
        one += f", {mebibytes(round(documents * size.merged))} for all {documents:,}"
    told = f"{one}; before segments are merged {size.at_once / size.merged:.1f} times that"
    return f"{told}. {_less(spec)}" if size.tokens else told


def _less(spec: "IndexSpec") -> str:
    """Return the options that would take less, as far as they are not chosen."""
    options = []
    if spec.tokens == "packed":
        options += ["--codec residual4 (half)"] if spec.codec == "int8" else []
        options += ["--codec int8 (half)"] if spec.codec == "float16" else []
    else:
        options += ["--tokens packed (a quarter)"]
    options += ["--token-pooling 2 (half)"] if spec.token_pooling == 1 else []
    return f"Less: {', '.join([*options, '--tokens none'])}"
