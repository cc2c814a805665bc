"""Targets of a fill: where features are stored, in a side index or in the documents. The fill is the same for both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import orjson

from es_ttc.index.attach.source import Checkpoint, DocumentVersion
from es_ttc.index.mappings.spec import IndexSpec

FeatureFields = Mapping[str, object]  # the fields to write below `ttc`


@dataclass(frozen=True, slots=True)
class FeatureVersion:
    """The state of a document's features in a target."""

    state: str | None
    hash: str | None
    encoder: str | None
    current: bool  # whether they were made from the requested version
    outdated: bool  # whether the target has features of a later version already
    own: tuple[int, int] | None  # `_seq_no` and `_primary_term` of the target's own document, which a write expects


@dataclass(frozen=True, slots=True)
class StoredFeatures:
    """A document's features in a target."""

    mark: FeatureVersion
    hit: Mapping[str, Any]


class WriteKind(StrEnum):
    """The kind of a write."""

    FEATURES = "features"
    RENEWAL = "renewal"  # only the mark: the text has not changed, so the features are valid
    FAILURE = "failure"  # the reason why there are no features


@dataclass(frozen=True, slots=True)
class FeatureWrite:
    """One document's features to be written."""

    version: DocumentVersion
    mark: FeatureVersion | None
    kind: WriteKind
    fields: FeatureFields
    truncated: bool = False  # whether the text has more tokens than are read


@dataclass(slots=True)
class WriteResult:
    """Result of a write; items that are not named were written."""

    conflicts: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)


class Target(Protocol):
    """The place where features are stored; :meth:`marks` reads some doc values of the source's documents."""

    spec: IndexSpec
    doc_value_fields: Sequence[str]

    async def load(self) -> Checkpoint:
        """Return the checkpoint of an earlier fill of the same source."""

    async def save(self, reached: Checkpoint) -> None:
        """Save the checkpoint."""

    async def refresh(self) -> None:
        """Make everything written so far visible to :meth:`marks`."""

    async def marks(self, versions: Sequence[DocumentVersion]) -> list[FeatureVersion | None]:
        """Return the state of documents' features, which may be older than the last refresh: see :meth:`write`."""

    async def write(self, items: Sequence[FeatureWrite]) -> WriteResult:
        """Write features; newer ones are never overwritten."""

    async def remove_orphans(self) -> int:
        """Remove the features of deleted documents, and return their number."""


def bulk_line(value: Mapping[str, object]) -> bytes:
    """Return one line of a bulk request."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def routed(version: DocumentVersion) -> dict[str, Any]:
    """Return the id and routing of a document for the action line of a bulk."""
    return {"_id": version.id} if version.routing is None else {"_id": version.id, "routing": version.routing}


def update_lines(version: DocumentVersion, update: Mapping[str, object]) -> tuple[bytes, bytes]:
    """Return the lines of a bulk that update a document, unless it has changed since it was read."""
    action = {**routed(version), "if_seq_no": version.seq_no, "if_primary_term": version.term}
    return bulk_line({"update": action}), bulk_line(update)
