"""Where features go: beside the documents or inside them. The fill is the same for both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import orjson

from es_ttc.index.attach.source import Checkpoint, DocumentVersion
from es_ttc.index.mappings.spec import IndexSpec

Fields = Mapping[str, object]
"""What is written below ``ttc``."""


@dataclass(frozen=True, slots=True)
class FeatureVersion:
    """What a target has of a document.

    Attributes:
        state: Its ``ttc.state``; None where it has none.
        hash: Content hash of its features; None where it has none.
        encoder: Identity of their encoder.
        current: Whether they were made from the very version that is asked about.
        outdated: Whether the target has those of a later one already.
        own: `_seq_no` and `_primary_term` of the target's own document, which a write expects.
    """

    state: str | None
    hash: str | None
    encoder: str | None
    current: bool
    outdated: bool
    own: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class StoredFeatures:
    """What a target has of a document, with features that were asked for.

    Attributes:
        mark: What it has.
        hit: The target's own hit.
    """

    mark: FeatureVersion
    hit: Mapping[str, Any]


class WriteKind(StrEnum):
    """What is written of a document."""

    FEATURES = "features"
    RENEWAL = "renewal"
    """Nothing but the mark: the text has not changed, so the features are right."""
    FAILURE = "failure"
    """The reason why there are no features."""


@dataclass(frozen=True, slots=True)
class FeatureWrite:
    """One document's features on their way.

    Attributes:
        version: The version that they were made from.
        mark: What the target had of it.
        kind: What is written.
        fields: What is written below ``ttc``, without marks.
    """

    version: DocumentVersion
    mark: FeatureVersion | None
    kind: WriteKind
    fields: Fields


@dataclass(frozen=True, slots=True)
class BulkLines:
    """Lines of a bulk."""

    id: str
    lines: Sequence[bytes]


@dataclass(slots=True)
class WriteResult:
    """What became of items; those that are not named are written.

    Attributes:
        conflicts: Positions of those whose features another fill has written.
        moved: Positions of those that their own users changed under way.
        refused: Reasons why the engine takes others never.
        left: Reasons why others are left as they are, without a mark: any write of ours would change them.
    """

    conflicts: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)


class Target(Protocol):
    """Where features go.

    Attributes:
        spec: What it carries.
        asks: Doc values of the source's documents that :meth:`marks` reads.
    """

    spec: IndexSpec
    asks: Sequence[str]

    async def load(self) -> Checkpoint:
        """Return how far an earlier fill of the same source came."""
        ...

    async def save(self, reached: Checkpoint) -> None:
        """Remember how far this one came.

        Raises:
            EngineError: The target is not there any more.
        """
        ...

    async def refresh(self) -> None:
        """Let :meth:`marks` see everything written so far."""
        ...

    async def marks(self, versions: Sequence[DocumentVersion]) -> list[FeatureVersion | None]:
        """Return what there is of documents; it may be older than the last refresh, which :meth:`write` will tell."""
        ...

    async def write(self, items: Sequence[FeatureWrite]) -> WriteResult:
        """Write features; nothing newer is ever overwritten."""
        ...

    async def remove_orphans(self) -> int:
        """Remove what belongs to documents that are gone, and return their number."""
        ...


def bulk_line(value: Mapping[str, object]) -> bytes:
    """Return one line of a bulk."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def routed(version: DocumentVersion) -> dict[str, Any]:
    """Return what names a document in the action line of a bulk."""
    return {"_id": version.id} if version.routing is None else {"_id": version.id, "routing": version.routing}
