"""Features for documents that the engine has just written: read by their ids, without waiting for a refresh."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach.feature_locations import FeatureLocation, target_of
from es_ttc.index.attach.source import DocumentVersion
from es_ttc.index.attach.target import FeatureVersion, FeatureWrite, WriteKind
from es_ttc.index.mappings.attached import PENDING
from es_ttc.index.mappings.spec import IndexSpec

EncodeWritten = Callable[[Sequence[Any], IndexSpec, Encoder], Awaitable[list[FeatureWrite]]]
"""Runs :func:`es_ttc.index.attach.fill.encode_items` where there is room for it."""


class WrittenDocument(NamedTuple):
    """A document as the engine's response to a write names it."""

    id: str
    seq_no: int
    term: int


async def encode_just_written(
    engine: Engine, held: FeatureLocation, written: Sequence[WrittenDocument], encoder: Encoder, encode: EncodeWritten
) -> int:
    """Write the features of documents that have passed the index's pipeline; return how many have them now.

    The job that encodes finds the others: those changed meanwhile, and those with a routing that is not known here.
    """
    expected = {each.id: each for each in written}  # of several writes of one document the last one counts
    items = [{"_id": name, "_source": list(held.spec.text_fields)} for name in expected]
    answer = await engine.request("POST", f"/{held.source.index}/_mget", body={"docs": items})
    texts = {
        found["_id"]: found.get("_source") or {}
        for found in answer["docs"]
        if found.get("found") and "_routing" not in found and _is_same(found, expected[found["_id"]])
    }
    versions = [
        DocumentVersion(each.id, None, each.seq_no, each.term, {}) for each in expected.values() if each.id in texts
    ]
    target = target_of(engine, held)
    marks = await target.marks(versions) if held.side else [_JUST_MARKED] * len(versions)
    documents = [
        (version, mark, texts[version.id])
        for version, mark in zip(versions, marks, strict=True)
        if mark is None or not mark.outdated
    ]
    encoded = await encode(documents, held.spec, encoder)
    result = await target.write(encoded)
    unwritten = result.conflicts | result.moved | result.refused.keys() | result.left.keys()
    done = [each for place, each in enumerate(encoded) if place not in unwritten]
    return sum(each.kind is not WriteKind.FAILURE for each in done)


_JUST_MARKED = FeatureVersion(state=PENDING, hash=None, encoder=None, current=False, outdated=False, own=None)
"""The state of a document that has just passed the index's pipeline."""


def _is_same(found: dict[str, Any], written: WrittenDocument) -> bool:
    return (found["_seq_no"], found["_primary_term"]) == (written.seq_no, written.term)
