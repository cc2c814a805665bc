"""Add fields below ``ttc`` to a document of an attached index with in-index features.

Such an index has all fields below ``ttc`` in ``_source`` (`es-ttc attach --in-index`), so a partial update keeps the
features. Features are valid for one ``_version``: if they are valid, the update increases the number in them too.
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
    """The part of a document that is read for an update."""

    marks: Mapping[str, Any]  # fields that must change with the document, so that its features stay valid

    def lines(self, added: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return the two lines of a bulk that write fields below ``ttc``, in place of the present ones."""
        changed = {"doc": {ROOT: {**added, **self.marks}}, "detect_noop": False}
        return orjson.dumps({"update": self.target}), orjson.dumps(changed)


class DocumentUpdater:
    """Reads the texts of documents of one index."""

    def __init__(self, engine: Engine, index: str, fields: Sequence[str]) -> None:
        self._engine = engine
        self._index = index
        self._fields = fields

    async def read(self, ids: Sequence[str]) -> list[PartialDocument]:
        """Return the documents of some ids, as of the last refresh, without deleted ones."""
        parts = {
            "seq_no_primary_term": True,
            "version": True,
            "_source": list(self._fields),
            "docvalue_fields": [VERSION],
        }
        return [_part(hit) for hit in await hits_by_id(self._engine, self._index, ids, parts)]


def _part(hit: Mapping[str, Any]) -> PartialDocument:
    version = hit["_version"]
    valid = hit.get("fields", {}).get(VERSION, [None])[0] == version
    marks = {VERSION.removeprefix(f"{ROOT}."): version + 1} if valid else {}
    return PartialDocument(
        hit["_id"], hit.get("_routing"), hit["_seq_no"], hit["_primary_term"], hit.get("_source") or {}, marks
    )
