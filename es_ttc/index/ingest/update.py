"""A document of an index that was there before, with something added below ``ttc``.

Such an index keeps all of ours in ``_source`` (`es-ttc attach --in-index`), so a partial update carries features along.
Features are valid for the ``_version`` that they were written with: where they are, the number goes up with ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from es_ttc.engine.protocol import Engine
from es_ttc.index.ingest.by_id import ReadDocument, hits_by_id
from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.spec import ROOT


@dataclass(frozen=True, slots=True)
class PartialDocument(ReadDocument):
    """A document as far as it is read to be updated.

    Attributes:
        marks: What must change with the document, so that its features stay valid.
    """

    marks: Mapping[str, Any]

    def lines(self, added: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return the two lines of a bulk that put something below ``ttc``, in place of what is there of it."""
        changed = {"doc": {ROOT: {**added, **self.marks}}, "detect_noop": False}
        return orjson.dumps({"update": self.target}), orjson.dumps(changed)


class DocumentUpdater:
    """Reads documents of one index as far as their text.

    Whole documents: see :class:`es_ttc.index.ingest.rewrite.DocumentRewriter`.

    Args:
        engine: The engine.
        index: The index's concrete name.
        fields: Its text fields.
    """

    def __init__(self, engine: Engine, index: str, fields: Sequence[str]) -> None:
        self._engine = engine
        self._index = index
        self._fields = fields

    async def read(self, ids: Sequence[str]) -> list[PartialDocument]:
        """Return the documents of some ids, as the last refresh shows them; those that are gone are left out.

        Raises:
            EngineUnavailable: A part of the index gave no answer.
        """
        asked = {
            "seq_no_primary_term": True,
            "version": True,
            "_source": list(self._fields),
            "docvalue_fields": [VERSION],
        }
        return [_part(hit) for hit in await hits_by_id(self._engine, self._index, ids, asked)]


def _part(hit: Mapping[str, Any]) -> PartialDocument:
    version = hit["_version"]
    valid = hit.get("fields", {}).get(VERSION, [None])[0] == version
    marks = {VERSION.removeprefix(f"{ROOT}."): version + 1} if valid else {}
    return PartialDocument(
        hit["_id"], hit.get("_routing"), hit["_seq_no"], hit["_primary_term"], hit.get("_source") or {}, marks
    )
