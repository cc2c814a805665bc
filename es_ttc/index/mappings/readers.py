"""Read the features of hits: one reader for each layout, so no other module knows how an index stores them.

A document's content hash ends with the mark of its layout. So a hit itself says how it is read, whatever alias or
pattern was searched, and no right to read mappings is needed.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from es_ttc.engine.versions import Product
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.spec import TOKEN_VECTOR, TOKENS, Layout
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.chunks import unpack_chunks
from es_ttc.vectors.packed import Blob, unpack_norms, unpack_offsets, unpack_tokens
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32, TokenVectors

StoredHit = Mapping[str, Any]
ReadQuery = dict[str, Any]

MAX_NESTED_OBJECTS = 10_000  # `index.mapping.nested_objects.limit` of both products: a document with more is rejected

SENDABLE_LAYOUTS: tuple[Layout, ...] = ("doc_values", "nested_vectors")
"""Layouts whose features the plugin can send: blobs as they are stored, nested vectors as a blob of its own making."""

_MARK = "-"
_OFFSETS_GROW = 6  # twelve bytes a token in place of two
_VECTOR_BYTES = "v"
_BLOB_SCRIPT = (
    "def values = doc.containsKey(params.field) ? doc[params.field] : []; return values.empty ? null : values[0]"
)
"""Returns the bytes of a binary doc value, or null. The engines' own `docvalue_fields` returns them as base64."""


@dataclass(frozen=True, slots=True)
class ReadFeature:
    """One feature of one document."""

    value: Any
    nbytes: int


class LayoutReader(Protocol):
    """Requests features and reads them from hits."""

    @property
    def most_documents(self) -> int:
        """Maximum number of documents per request, for an engine's heap and this process."""

    @property
    def as_text(self) -> bool:
        """Whether token vectors are read as JSON numbers, ten times as many bytes as in a blob."""

    def request(self, features: Sequence[Feature], *, bare: bool = False) -> dict[str, Any]:
        """Return the part of a `_search` body that requests features, beside the query.

        With `bare` hits need no `_id`, and inline scripts are allowed, so that features are read faster.
        """

    def query(self, query: ReadQuery, features: Sequence[Feature], product: Product) -> ReadQuery:
        """Return a query for the same documents whose hits have what the features are read from."""

    def read(self, hit: StoredHit, feature: Feature) -> ReadFeature | None:
        """Return a feature of a hit, or None if the document does not have it."""


def marked(digest: str, layout: Layout) -> str:
    """Return a content hash with the mark of its layout."""
    return f"{digest}{_MARK}{layout}"


def unpack_feature(feature: Feature, blob: Blob) -> Any:
    """Return the feature in a blob."""
    return _UNPACK[feature](blob)


def layout_of(content: str) -> str:
    """Return the mark at the end of a content hash; empty where it has none."""
    return content.partition(_MARK)[2]


def reader_of(layout: str) -> LayoutReader:
    """Return the reader of a layout."""
    if layout not in _READERS:
        raise ValueError(
            f"features of layout [{layout}] are not read by this release of es-ttc: upgrade it, or make them anew"
        )
    return _READERS[layout]


class BlobReader:
    """Reads all features from blobs in stored fields."""

    most_documents = 1000
    as_text = False

    def request(self, features: Sequence[Feature], *, bare: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """Request the blobs as stored fields."""
        return {"_source": False, "stored_fields": _names(features)}

    def query(self, query: ReadQuery, features: Sequence[Feature], product: Product) -> ReadQuery:  # noqa: ARG002
        """Return the query itself."""
        return query

    def read(self, hit: StoredHit, feature: Feature) -> ReadFeature | None:
        """Unpack one blob."""
        values = hit.get("fields", {}).get(FEATURES[feature].name)
        if not values or values[0] is None:
            return None
        blob = _bytes(values[0])
        grows = _OFFSETS_GROW if feature is Feature.OFFSETS else 1  # most are views of the blob
        return ReadFeature(unpack_feature(feature, blob), grows * len(blob))


class DocValueReader(BlobReader):
    """Reads all features from blobs in doc values, by a script: bytes take a third of the time of base64."""

    def request(self, features: Sequence[Feature], *, bare: bool = False) -> dict[str, Any]:
        """Request the blobs as doc values, with `bare` by the script."""
        names = _names(features)
        if not bare:
            return {"_source": False, "docvalue_fields": names}
        script = {"lang": "painless", "source": _BLOB_SCRIPT}
        scripts = {name: {"script": {**script, "params": {"field": name}}} for name in names}
        return {"stored_fields": "_none_", "script_fields": scripts}


class NestedReader(BlobReader):
    """Reads token vectors from nested vector fields, by a script in inner hits, and all other features from blobs."""

    most_documents = 100
    as_text = True

    def request(self, features: Sequence[Feature], *, bare: bool = False) -> dict[str, Any]:
        """Request the blobs; :meth:`query` requests token vectors."""
        return super().request([feature for feature in features if feature is not Feature.TOKENS], bare=bare)

    def query(self, query: ReadQuery, features: Sequence[Feature], product: Product) -> ReadQuery:
        """Add the nested vectors as inner hits, in the order of the tokens."""
        if Feature.TOKENS not in features:
            return query
        inner = {
            "name": TOKENS,
            "size": MAX_NESTED_OBJECTS,
            "_source": False,
            "sort": ["_doc"],
            "script_fields": {_VECTOR_BYTES: {"script": {"lang": "painless", "source": _vector_script(product)}}},
        }
        every: ReadQuery = {"match_all": {}}
        nested = {"path": TOKENS, "query": every, "score_mode": "none", "inner_hits": inner}
        return {"bool": {"must": [query], "should": [{"nested": nested}]}}

    def read(self, hit: StoredHit, feature: Feature) -> ReadFeature | None:
        """Read the vectors of the inner hits, or unpack one blob."""
        if feature is not Feature.TOKENS:
            return super().read(hit, feature)
        found = hit.get("inner_hits", {}).get(TOKENS, {}).get("hits", {}).get("hits")
        if not found:
            return None
        rows = [_bytes(token["fields"][_VECTOR_BYTES][0]) for token in found]
        return _finite_tokens(np.frombuffer(b"".join(rows), dtype="<f4").reshape(len(rows), -1))


class SourceReader(BlobReader):
    """Reads token vectors as numbers from `_source`, and all other features from blobs."""

    most_documents = 100  # numbers as text: a document of 256 tokens is about a megabyte
    as_text = True

    def __init__(self, name: str, vectors: Callable[[Any], Any]) -> None:
        self._name = name
        self._vectors = vectors

    def request(self, features: Sequence[Feature], *, bare: bool = False) -> dict[str, Any]:
        """Request the blobs, and token vectors from `_source`."""
        blobs = [feature for feature in features if feature is not Feature.TOKENS]
        return {**super().request(blobs, bare=bare), "_source": [self._name] if len(blobs) < len(features) else False}

    def read(self, hit: StoredHit, feature: Feature) -> ReadFeature | None:
        """Read the vectors, or unpack one blob."""
        if feature is not Feature.TOKENS:
            return super().read(hit, feature)
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
        return _finite_tokens(matrix)


_ROOT, _, _LEAF = TOKENS.partition(".")

_READERS: Mapping[str, LayoutReader] = {
    "doc_values": DocValueReader(),
    "nested_vectors": NestedReader(),
    "nested": SourceReader(TOKEN_VECTOR, lambda found: [token["v"] for token in found]),
    "rank_vectors": SourceReader(TOKENS, lambda found: found),
}


def _names(features: Sequence[Feature]) -> list[str]:
    return [FEATURES[feature].name for feature in features]


def _finite_tokens(matrix: Float32) -> ReadFeature:
    if not np.isfinite(matrix).all():
        raise ValueError("token vectors: a value is not finite")
    tokens = TokenVectors(matrix)
    return ReadFeature(tokens, tokens.nbytes)


def _unpack_row(blob: Blob) -> Float32:
    """Return the one vector in a blob."""
    rows = dequantise(unpack_tokens(blob))
    if len(rows) != 1:
        raise ValueError(f"packed vector: {len(rows)} rows, where one is expected")
    row: Float32 = rows[0]
    return row


_UNPACK: Mapping[Feature, Callable[[Blob], Any]] = {
    Feature.TOKENS: unpack_tokens,
    Feature.POOLED: _unpack_row,
    Feature.NORMS: unpack_norms,
    Feature.OFFSETS: unpack_offsets,
    Feature.CHUNKS: unpack_chunks,
    Feature.REVERSED: _unpack_row,
}


def _vector_script(product: Product) -> str:
    """Return the script that returns a nested vector as little-endian float32."""
    value = "value" if product == "opensearch" else "vectorValue"
    return (
        f"float[] v = doc['{TOKEN_VECTOR}'].{value}; byte[] b = new byte[4 * v.length]; int at = 0; "
        "for (int i = 0; i < v.length; ++i) { int bits = Float.floatToIntBits(v[i]); "
        "b[at++] = (byte) bits; b[at++] = (byte) (bits >> 8); b[at++] = (byte) (bits >> 16); "
        "b[at++] = (byte) (bits >> 24); } return b;"
    )


def _bytes(value: bytes | str) -> bytes:
    """Return a blob; doc values are base64 even in CBOR, and OpenSearch omits its padding."""
    if isinstance(value, bytes):
        return value
    return base64.b64decode(value + "=" * (-len(value) % 4))
