"""What tells documents apart: the key of a document's features, and the marks of hits without ids."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.index.mappings.spec import HASH

SEQ_NO = "_seq_no"
Mark = tuple[str, str, int]
"""Index, content hash, and which one of the window's documents with that content it is, from 0."""


def marks_of(hits: Sequence[Mapping[str, Any]]) -> list[Mark | None]:
    """Return what tells each hit from the others of one answer; None for one without a content hash."""
    seen: Counter[tuple[str, str]] = Counter()
    marks: list[Mark | None] = []
    for hit in hits:
        content = (hit.get("fields") or {}).get(HASH)
        if not content:
            marks.append(None)
            continue
        place = (str(hit["_index"]), str(content[0]))
        marks.append((*place, seen[place]))
        seen[place] += 1
    return marks


def identity_mark(hit: Mapping[str, Any], *, named: bool) -> tuple[str, str | None]:
    """Return what tells a hit's document from others across answers.

    Args:
        hit: The hit.
        named: Whether that is its index and id, in place of its index and content hash (None without one).
    """
    if named:
        return str(hit["_index"]), str(hit.get("_id"))
    content = (hit.get("fields") or {}).get(HASH)
    return str(hit["_index"]), str(content[0]) if content else None


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """A document's content, as a search has just returned it: documents of equal content have equal features.

    Attributes:
        index: Its concrete index.
        encoder: Identity of the encoder of its features.
        hash: Hash of the content that they were made from, and of how they are stored.
        side: Whether the index is a side index, in place of the document's own.
    """

    index: str
    encoder: str
    hash: str
    side: bool = False
