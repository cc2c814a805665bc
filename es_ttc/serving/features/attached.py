"""Where the features of a window's documents are, and whether they are of the text that the documents have now.

An index that es-ttc made loses the features of a document with any other write of it. Of an attached index each
document's features carry the mark of the very write that they were made from: its `_seq_no` for those in a side index
(with the source's UUID: an index made anew counts from the beginning), the document's `_version` for those inside.
Where the mark is another one, the document's text is read in the caller's name and its hash compared: a new price
leaves the vectors of a title right, a new title does not.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from es_ttc.common.caches import LruCache
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.mappings.attached import ID, ROUTING, SEQ_NO, SOURCE, VERSION, side_alias
from es_ttc.index.mappings.fields import READY
from es_ttc.index.mappings.queries import MOST_CANDIDATES
from es_ttc.index.mappings.spec import ENCODER, HASH, STATE, IndexSpec
from es_ttc.serving.engine_requests import EngineRequests, NotForCaller, NotThere
from es_ttc.serving.features.keys import SEQ_NO as SEQ_NO_OF_HITS
from es_ttc.serving.features.keys import DocumentKey
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.logs import log
from es_ttc.settings import SideCredentials

MARK_FIELDS = (ID, ROUTING, SOURCE, SEQ_NO, HASH, ENCODER, STATE)
"""Doc values of a side index's documents that :func:`mark_of` reads."""

_DOCUMENTS_A_READ = 1000
_REMEMBERED = 1000
_IF_IT_IS_THERE = b"ignore_unavailable=true&allow_no_indices=true"
_FAILING = "features could not be located"

Identity = tuple[str, str | None]
"""A document's id and routing."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a side index has of a document.

    Attributes:
        side: The concrete side index.
        encoder: Identity of the features' encoder.
        hash: Hash of the text that they were made from.
        source: UUID of the source index.
        seq_no: `_seq_no` of the write that they were made from; it was in every copy of the shard by then, so no other
            write of that index can have it.
    """

    side: str
    encoder: str
    hash: str
    source: str
    seq_no: int


@dataclass(slots=True)
class FeatureLocations:
    """Where the features of a window's documents are.

    Attributes:
        keys: For each hit what identifies its features, None for one without features that are right.
        stale: Places of hits that have features of an earlier text only.
        sides: Concrete side indices of the window's indices, by the source's name; "" for one with an empty side.
        odd: Places of hits that carry features, and not one hash and one encoder.
    """

    keys: list[DocumentKey | None]
    stale: set[int] = field(default_factory=set)
    sides: dict[str, str] = field(default_factory=dict)
    odd: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _UnverifiedHit:
    """A hit whose features may be of an earlier text, and how to tell."""

    place: int
    key: DocumentKey
    index: str
    identity: Identity


class AttachedFeatureLocator:
    """Finds the features of attached indices.

    Args:
        upstream: The engine.
        credentials: In whose name side indices are read.
    """

    def __init__(self, upstream: Upstream, credentials: SideCredentials) -> None:
        self._upstream = upstream
        self._engine = EngineRequests(upstream)
        self._credentials = credentials
        self._with_sides: LruCache[str, bool] = LruCache(_REMEMBERED)

    def expects_ids(self, caller: Caller) -> bool:
        """Whether what the caller searches had a side index the last time, which is read by the hits' ids."""
        return self._with_sides.get(caller.indices) is not None

    async def needs_ids(self, hits: Sequence[Mapping[str, Any]], caller: Caller) -> bool:
        """Whether ids are needed to find the features of hits: those of a side index, or some that may be stale.

        That an index has a side index is expected again of the next search for the same.
        """
        indices: set[str] = set()
        for hit in hits:
            if not _has_own(hit):
                indices.add(str(hit["_index"]))
            elif changed_inside(hit):
                return True
        found = await asyncio.gather(*(self._marks(index, [], caller) for index in sorted(indices)))
        needed = any(marks is not None for marks in found)
        if needed:
            self._with_sides.put(caller.indices, True, 1)
        return needed

    def door(self, caller: Caller) -> Caller:
        """Return in whose name a side index is read: the caller's, or the gateway's own."""
        if self._credentials == "gateway":
            return Caller(self._upstream.service_headers())
        return Caller(caller.headers)

    async def locate(self, hits: Sequence[Mapping[str, Any]], caller: Caller) -> FeatureLocations:
        """Return where the features of hits are.

        Args:
            hits: With `_id`, `_version` and the doc value of `_seq_no`, where one may come from an attached index.
            caller: In whose name documents are read.

        Raises:
            EngineError: The engine refused a read.
            EngineUnavailable: It does not answer.
        """
        located = FeatureLocations([own_key(hit) for hit in hits])
        doubtful: list[_UnverifiedHit] = []
        beside: dict[str, list[int]] = defaultdict(list)
        for place, (hit, key) in enumerate(zip(hits, located.keys, strict=True)):
            if key is None and _has_own(hit):
                located.odd.add(place)
            elif key is None:
                if "_id" in hit:
                    beside[str(hit["_index"])].append(place)
            elif changed_inside(hit):
                doubtful.append(_UnverifiedHit(place, key, key.index, identity_of(hit)))
        parts = await asyncio.gather(
            *(self._beside(index, places, hits, located, caller) for index, places in beside.items())
        )
        for part in parts:
            doubtful += part
        right = await self._same_text(doubtful, caller)
        for one in doubtful:
            if one.place in right:
                located.keys[one.place] = one.key
            else:
                located.keys[one.place] = None
                located.stale.add(one.place)
        return located

    async def current(
        self,
        index: str,
        hits: Sequence[Mapping[str, Any]],
        marks: Mapping[Identity, Mark],
        uuid: str | None,
        caller: Caller,
    ) -> list[DocumentKey | None]:
        """Return what identifies the features of hits of one index, None where they are not of the text that it has.

        Args:
            index: The source.
            hits: As the engine has just returned them to the caller, with `_id` and the doc value of `_seq_no`.
            marks: What its side index has of them.
            uuid: The source's; None where it is not known, so that texts are compared instead.
            caller: In whose name texts are read.

        Raises:
            EngineError: The engine refused a read.
            EngineUnavailable: It does not answer.
        """
        keys: list[DocumentKey | None] = [None] * len(hits)
        doubtful = _judge(index, dict(enumerate(hits)), marks, uuid, keys)
        right = await self._same_text(doubtful, caller)
        for one in doubtful:
            keys[one.place] = one.key if one.place in right else None
        return keys

    async def _beside(
        self,
        index: str,
        places: Sequence[int],
        hits: Sequence[Mapping[str, Any]],
        located: FeatureLocations,
        caller: Caller,
    ) -> list[_UnverifiedHit]:
        """Find what a side index has of the hits of one index, and return those whose text is to be compared."""
        ids = sorted({identity_of(hits[place])[0] for place in places})
        marks, uuid = await asyncio.gather(self._marks(index, ids, caller), self.uuid(index, caller))
        if marks is None:
            return []
        located.sides[index] = next((mark.side for mark in marks.values()), "")
        return _judge(index, {place: hits[place] for place in places}, marks, uuid, located.keys)

    async def _marks(self, index: str, ids: Sequence[str], caller: Caller) -> dict[Identity, Mark] | None:
        """Return what the side index of an index has of documents; None where it has no side index."""
        if ":" in index:  # of another cluster, whose side indices are not ours to find
            return None
        parts = [ids[start : start + _DOCUMENTS_A_READ] for start in range(0, len(ids), _DOCUMENTS_A_READ)] or [[]]
        answers = await asyncio.gather(*(self._marks_of(index, part, caller) for part in parts))
        if any(answer is None for answer in answers):
            return None
        marks: dict[Identity, Mark] = {}
        for answer in answers:
            marks |= answer or {}
        return marks

    async def _marks_of(self, index: str, ids: Sequence[str], caller: Caller) -> dict[Identity, Mark] | None:
        """Ask once: the alias leads to one side index, so all the marks of an answer are of one encoder."""
        body = {
            "query": {"ids": {"values": list(ids)}},
            "size": MOST_CANDIDATES if ids else 0,
            "stored_fields": "_none_",
            "docvalue_fields": [*MARK_FIELDS],
            "track_total_hits": False,
        }
        door = self.door(caller)
        engine = self._engine.as_caller(door)
        answer = await _or_none(index, engine.search([side_alias(index)], body, _IF_IT_IS_THERE, failing=_FAILING))
        if answer is None or not answer["_shards"]["total"]:
            return None
        found = (mark_of(hit) for hit in answer["hits"]["hits"])
        return dict(one for one in found if one is not None)

    async def uuid(self, index: str, caller: Caller) -> str | None:
        """Return an index's UUID; None where the caller may not see it, so that texts are compared instead."""
        path = f"/{quote(index, safe='')}/_settings/index.uuid".encode()
        engine = self._engine.as_caller(self.door(caller))
        answer = await _or_none(index, engine.json("GET", path, b"flat_settings=true", failing=_FAILING))
        if answer is None or index not in answer:
            return None
        uuid: str | None = answer[index]["settings"].get("index.uuid")
        return uuid

    async def _same_text(self, doubtful: Sequence[_UnverifiedHit], caller: Caller) -> set[int]:
        """Return the places of hits whose text is the one that their features were made from."""
        alike: dict[tuple[str, str], list[_UnverifiedHit]] = defaultdict(list)
        for one in doubtful:
            alike[one.index, one.key.index].append(one)
        parts = [
            (index, holder, group[start : start + _DOCUMENTS_A_READ])
            for (index, holder), group in alike.items()
            for start in range(0, len(group), _DOCUMENTS_A_READ)
        ]
        found = await asyncio.gather(*(self._compare(index, holder, part, caller) for index, holder, part in parts))
        return set().union(*found)

    async def _compare(self, index: str, holder: str, group: Sequence[_UnverifiedHit], caller: Caller) -> set[int]:
        spec = await self._spec(index, holder, caller, side=group[0].key.side)
        if spec is None:
            return set()
        body: dict[str, Any] = {
            "query": {
                "bool": {
                    "filter": [
                        {"ids": {"values": sorted({one.identity[0] for one in group})}},
                        {"term": {"_index": index}},
                    ]
                }
            },
            "size": MOST_CANDIDATES,
            "_source": list(spec.text_fields),
            "track_total_hits": False,
        }
        naming = urlencode(caller.params).encode()
        engine = self._engine.as_caller(caller)  # inside a point in time: the text of the state that is searched
        answer = await _or_none(index, engine.search([index], body, naming, failing=_FAILING))
        if answer is None:
            return set()
        texts = {identity_of(hit): hit.get("_source") or {} for hit in answer["hits"]["hits"]}
        return {
            one.place for one in group if one.identity in texts and _hash_of(texts[one.identity], spec) == one.key.hash
        }

    async def _spec(self, index: str, holder: str, caller: Caller, *, side: bool) -> IndexSpec | None:
        """Return the spec of the index that holds features."""
        if side:
            door = self.door(caller)
            path = door.path([holder], "_mapping")
        else:
            door, path = caller, caller.path([index], "_mapping")
        answer = await _or_none(index, self._engine.as_caller(door).json("GET", path, failing=_FAILING))
        if answer is None or holder not in answer:
            return None
        return IndexSpec.from_mapping(holder, answer[holder]["mappings"])


async def _or_none(index: str, asked: Awaitable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the engine's answer; None where there is nothing, or nothing for this caller to see."""
    try:
        return await asked
    except NotThere:
        return None
    except NotForCaller as error:
        log.warning("features beside an index cannot be read", index=index, status=error.upstream_status)
        return None


def mark_of(hit: Mapping[str, Any]) -> tuple[Identity, Mark] | None:
    """Return which document of the source a hit of its side index is about, and its mark; None without features."""
    fields = hit.get("fields", {})
    values = [fields.get(name, ()) for name in (STATE, ID, ENCODER, HASH, SOURCE, SEQ_NO)]
    if any(len(value) != 1 for value in values):
        return None
    (state,), (identifier,), *mark = values
    if state != READY:
        return None
    return (identifier, fields.get(ROUTING, [None])[0]), Mark(hit["_index"], *(value for (value,) in mark))


def identity_of(hit: Mapping[str, Any]) -> Identity:
    """Return the id and the routing of a hit of a source."""
    return str(hit.get("_id", "")), hit.get("_routing")


def changed_inside(hit: Mapping[str, Any]) -> bool:
    """Whether a document was written again after its features were put into it."""
    marked = hit["fields"].get(VERSION)
    return bool(marked) and marked[0] != hit.get("_version")


def _judge(
    index: str,
    hits: Mapping[int, Mapping[str, Any]],
    marks: Mapping[Identity, Mark],
    uuid: str | None,
    keys: list[DocumentKey | None],
) -> list[_UnverifiedHit]:
    """Put in place the keys of hits whose features are of the very write, and return those to be compared by text."""
    doubtful = []
    for place, hit in hits.items():
        mark = marks.get(identity_of(hit))
        if mark is None:
            continue
        key = DocumentKey(mark.side, mark.encoder, mark.hash, side=True)
        if (mark.source, mark.seq_no) == (uuid, _seq_no(hit)):
            keys[place] = key
        else:
            doubtful.append(_UnverifiedHit(place, key, index, identity_of(hit)))
    return doubtful


def own_key(hit: Mapping[str, Any]) -> DocumentKey | None:
    """Return what identifies the features that a hit carries itself, or None where it has none, or none that is one."""
    if not _has_own(hit):
        return None
    fields = hit["fields"]
    if len(fields[ENCODER]) > 1 or len(fields[HASH]) > 1:
        return None
    return DocumentKey(hit["_index"], fields[ENCODER][0], fields[HASH][0])


def _has_own(hit: Mapping[str, Any]) -> bool:
    fields = hit.get("fields")
    return bool(fields and fields.get(ENCODER) and fields.get(HASH))


def _seq_no(hit: Mapping[str, Any]) -> int | None:
    found: int | None = (hit.get("fields") or {}).get(SEQ_NO_OF_HITS, [None])[0]
    return found


def _hash_of(document: Mapping[str, Any], spec: IndexSpec) -> str | None:
    try:
        text, spans = compose(document, spec.text_fields)
    except InvalidRequest:
        return None
    return content_hash(text, spans, spec)
