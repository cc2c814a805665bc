"""Read the features of hits: one reader for each layout, so no other module knows how an index stores them.

A document's content hash ends with the mark of its layout. So a hit itself says how it is read, whatever alias or
pattern was searched, and no right to read mappings is needed.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.spec import TOKEN_VECTOR, TOKENS, Layout
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.chunks import unpack_chunks
from es_ttc.vectors.packed import NO_CODEBOOKS, Codebooks, unpack_norms, unpack_offsets, unpack_tokens
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import TokenVectors

Hit = Mapping[str, Any]

BLOB_LAYOUTS: tuple[Layout, ...] = ("stored", "doc_values")
"""Layouts with all features in blobs, which the plugin can send unchanged."""

_MARK = "-"


@dataclass(frozen=True, slots=True)
class ReadFeature:
    """One feature of one document.

    Attributes:
        value: The value for rescorers; offsets with the names of their fields.
        nbytes: Approximate size in memory.
    """

    value: Any
    nbytes: int


class FeatureReader(Protocol):
    """Requests features and reads them from hits."""

    @property
    def most_documents(self) -> int:
        """Maximum number of documents per request, for an engine's heap and this process."""
        ...

    @property
    def as_text(self) -> bool:
        """Whether token vectors are read as JSON numbers, ten times as many bytes as in a blob."""
        ...

    def request(self, features: Sequence[Feature]) -> dict[str, Any]:
        """Return the part of a `_search` body that requests features."""
        ...

    def read(self, hit: Hit, feature: Feature, codebooks: Codebooks = NO_CODEBOOKS) -> ReadFeature | None:
        """Return a feature of a hit, or None if the document does not have it.

        Raises:
            UnknownCodebook: It was written with a codebook that is not available.
            ValueError: The stored value is damaged.
        """
        ...


def marked(digest: str, layout: Layout) -> str:
    """Return a content hash with the mark of its layout; stored fields have none."""
    return digest if layout == "stored" else f"{digest}{_MARK}{layout}"


def layout_of(content: str) -> str:
    """Return the mark at the end of a content hash."""
    return content.partition(_MARK)[2] or "stored"


def reader_of(layout: str) -> FeatureReader:
    """Return the reader of a layout.

    Raises:
        ValueError: It was written by a newer release.
    """
    if layout not in _READERS:
        raise ValueError(f"features of layout [{layout}] are not known to this release of es-ttc: upgrade it")
    return _READERS[layout]


class BlobReader:
    """Reads all features from blobs.

    Args:
        part: Where they are stored: ``stored_fields`` or ``docvalue_fields``.
    """

    most_documents = 1000
    as_text = False

    def __init__(self, part: str) -> None:
        self._part = part

    def request(self, features: Sequence[Feature]) -> dict[str, Any]:
        """Request the fields without `_source`."""
        return {"_source": False, self._part: [FEATURES[feature].name for feature in features]}

    def read(self, hit: Hit, feature: Feature, codebooks: Codebooks = NO_CODEBOOKS) -> ReadFeature | None:
        """Unpack one blob."""
        values = hit.get("fields", {}).get(FEATURES[feature].name)
        if not values:
            return None
        blob = _bytes(values[0])
        if feature is not Feature.TOKENS:
            return ReadFeature(_UNPACK[feature](blob), len(blob))
        tokens = unpack_tokens(blob, codebooks)
        return ReadFeature(tokens, max(len(blob), tokens.nbytes))


class SourceReader:
    """Reads token vectors as numbers from `_source`, and all other features from blobs.

    Args:
        name: The field to request.
        vectors: Extracts the vectors from the value of ``ttc.tokens``.
    """

    most_documents = 100  # numbers as text: a document of 256 tokens is about a megabyte
    as_text = True

    def __init__(self, name: str, vectors: Callable[[Any], Any]) -> None:
        self._name = name
        self._vectors = vectors
        self._blobs = BlobReader("stored_fields")

    def request(self, features: Sequence[Feature]) -> dict[str, Any]:
        """Request the vectors by their full name: Elasticsearch does not return them otherwise."""
        blobs = [feature for feature in features if feature is not Feature.TOKENS]
        return {**self._blobs.request(blobs), "_source": [self._name] if len(blobs) < len(features) else False}

    def read(self, hit: Hit, feature: Feature, codebooks: Codebooks = NO_CODEBOOKS) -> ReadFeature | None:
        """Read the vectors, or unpack one blob."""
        if feature is not Feature.TOKENS:
            return self._blobs.read(hit, feature, codebooks)
        source = hit.get("_source", {})
        found = source.get(_ROOT, {}).get(_LEAF)
        if found is None:
            found = source.get(TOKENS)  # Elasticsearch returns rank_vectors here
        if found is None:
            return None
        try:
            matrix = np.array(self._vectors(found), dtype=np.float32)
        except (KeyError, TypeError) as error:
            raise ValueError(f"token vectors: not a list of vectors ({error})") from error
        if not np.isfinite(matrix).all():
            raise ValueError("token vectors: a value is not finite")
        tokens = TokenVectors(matrix)
        return ReadFeature(tokens, tokens.nbytes)


_ROOT, _, _LEAF = TOKENS.partition(".")

_READERS: Mapping[str, FeatureReader] = {
    "stored": BlobReader("stored_fields"),
    "doc_values": BlobReader("docvalue_fields"),
    "nested": SourceReader(TOKEN_VECTOR, lambda found: [token["v"] for token in found]),
    "rank_vectors": SourceReader(TOKENS, lambda found: found),
}

_UNPACK: Mapping[Feature, Callable[[bytes], Any]] = {
    Feature.POOLED: lambda blob: dequantise(unpack_tokens(blob))[0],
    Feature.NORMS: unpack_norms,
    Feature.OFFSETS: unpack_offsets,
    Feature.CHUNKS: unpack_chunks,
}


def _bytes(value: bytes | str) -> bytes:
    """Return a blob; doc values are base64 even in CBOR, and OpenSearch omits its padding."""
    if isinstance(value, bytes):
        return value
    return base64.b64decode(value + "=" * (-len(value) % 4))
