"""Features for some documents, read by their ids without waiting for a refresh: written or searched ones."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach.feature_locations import FeatureLocation, target_of
from es_ttc.index.attach.fill import is_settled
from es_ttc.index.attach.side_index import SideIndexTarget
from es_ttc.index.attach.source import DocumentVersion, routing_of
from es_ttc.index.attach.target import FeatureVersion, FeatureWrite, WriteKind
from es_ttc.index.mappings.attached import PENDING
from es_ttc.index.mappings.fields import READY
from es_ttc.index.mappings.spec import IndexSpec

EncodeItems = Callable[[Sequence[Any], IndexSpec, Encoder], Awaitable[list[FeatureWrite]]]
"""Runs :func:`es_ttc.index.attach.fill.encode_items` where there is room for it."""

_JUST_MARKED = FeatureVersion(state=PENDING, hash=None, encoder=None, current=False, outdated=False, own=None)
"""The state of a document that has just passed the index's pipeline."""


class WrittenDocument(NamedTuple):
    """A document as the engine's response to a write names it."""

    id: str
    seq_no: int
    term: int


@dataclass(slots=True)
class EncodedDocuments:
    """Counts of documents; those `without` features have no text or cannot be encoded, `changed` ones may be gone."""

    encoded: int = 0
    present: int = 0
    changed: int = 0
    without: list[DocumentVersion] = field(default_factory=list)


async def encode_just_written(
    engine: Engine, held: FeatureLocation, written: Sequence[WrittenDocument], encoder: Encoder, encode: EncodeItems
) -> int:
    """Write the features of documents that have passed the index's pipeline; return how many have them now.

    The job that encodes finds the others: those changed meanwhile, and those with a routing that is not known here.
    """
    expected = {each.id: each for each in written}  # of several writes of one document the last one counts
    texts = await _texts(engine, held, [(name, None) for name in expected])
    same = [
        (version, text)
        for version, text in texts
        if version.routing is None and (version.id, version.seq_no, version.term) == expected[version.id]
    ]
    versions = [version for version, _ in same]
    target = target_of(engine, held)
    marks = await target.marks(versions) if held.side else [_JUST_MARKED] * len(versions)
    documents = [
        (version, mark, text)
        for (version, text), mark in zip(same, marks, strict=True)
        if mark is None or not mark.outdated
    ]
    items = await encode(documents, held.spec, encoder)
    result = await target.write(items)
    unwritten = result.conflicts | result.moved | result.refused.keys() | result.left.keys()
    done = [item for place, item in enumerate(items) if place not in unwritten]
    return sum(item.kind is not WriteKind.FAILURE for item in done)


async def encode_searched(
    engine: Engine,
    held: FeatureLocation,
    documents: Iterable[tuple[str, str | None]],
    encoder: Encoder,
    encode: EncodeItems,
) -> EncodedDocuments:
    """Write the features of an attached index's documents, by id and routing, that have none of their present text.

    What others have written is read after a refresh; what they write meanwhile is never overwritten.
    """
    target = SideIndexTarget(engine, held.source, held.index, held.spec)
    keys = list(documents)
    texts = await _texts(engine, held, keys)
    await target.refresh()
    marks = await target.marks([version for version, _ in texts])
    outcome = EncodedDocuments(changed=len(keys) - len(texts))
    missing = []
    for (version, text), mark in zip(texts, marks, strict=True):
        if not is_settled(mark):
            missing.append((version, mark, text))
        elif mark is not None and mark.state == READY:
            outcome.present += 1
        else:
            outcome.without.append(version)
    items = await encode(missing, held.spec, encoder) if missing else []
    result = await target.write(items)
    for place, item in enumerate(items):
        if place in result.conflicts:
            outcome.changed += 1
        elif place not in result.refused and _has_vectors(item):
            outcome.encoded += item.kind is WriteKind.FEATURES
            outcome.present += item.kind is WriteKind.RENEWAL
        else:
            outcome.without.append(item.version)
    if items:
        await target.require_present()
    return outcome


async def _texts(
    engine: Engine, held: FeatureLocation, documents: Sequence[tuple[str, str | None]]
) -> list[tuple[DocumentVersion, dict[str, Any]]]:
    """Read the text fields of documents; those that are gone are left out."""
    fields = list(held.spec.text_fields)
    items = [{"_id": name, "_source": fields, **routing_of(routing)} for name, routing in documents]
    answer = await engine.request("POST", f"/{held.source.index}/_mget", body={"docs": items})
    return [(DocumentVersion.of(item), item.get("_source") or {}) for item in answer["docs"] if item.get("found")]


def _has_vectors(item: FeatureWrite) -> bool:
    """Return whether a document has vectors after its write."""
    if item.kind is WriteKind.RENEWAL:
        return item.mark is not None and item.mark.state == READY
    return item.fields["state"] == READY
