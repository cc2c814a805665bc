"""Features in side indices: where those of a window's documents are, and whether they are of the present text.

In an index that es-ttc created, any other write of a document removes its features. Features of an attached index are
stored in a side index, with a mark of the write that they were made from: the `_seq_no`, and the source's UUID, because
a recreated index counts again from 0. If the document has another mark now, its text is read with the caller's
credentials and its hash is compared: after a change of the price the vectors of a title are still valid, after a change
of the title they are not.

Marks that earlier searches have read are not read again (:mod:`known_marks`). The UUID that they are compared with may
be known too; then it is read while the window is scored, and a window with another one is located and scored again.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from sys import intern
from typing import Any
from urllib.parse import quote, urlencode

from es_ttc.common.caches import LruCache
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.mappings.attached import ID, ROUTING, SEQ_NO, SOURCE, side_alias
from es_ttc.index.mappings.fields import READY
from es_ttc.index.mappings.queries import MAX_KNN_CANDIDATES
from es_ttc.index.mappings.spec import ENCODER, HASH, STATE, IndexSpec
from es_ttc.serving.engine import EngineClient, NotForCaller, NotThere
from es_ttc.serving.features.keys import SEQ_NO_FIELD, DocumentKey, RoutedId, is_mark
from es_ttc.serving.features.known_marks import Attachment, FeatureMark, KnownMarks
from es_ttc.serving.features.locations import FeatureLocations, own_keys
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.logs import log

DOCUMENT_FIELDS = (ID, ROUTING, SEQ_NO_FIELD)
"""Doc values of a side index's documents that tell which document of the source each is of, and which mark it has."""
MARK_FIELDS = (*DOCUMENT_FIELDS, SOURCE, SEQ_NO, HASH, ENCODER, STATE)
"""Doc values of a side index's documents that contain the marks too."""

_DOCUMENTS_A_READ = 1000
_MAX_REMEMBERED = 1000
_NO_ERROR_IF_MISSING = b"ignore_unavailable=true&allow_no_indices=true"
_UUID, _SHARDS = "index.uuid", "index.number_of_shards"
_FLAT = b"flat_settings=true&ignore_unavailable=true"
_FAILING = "features could not be located"


class FeatureLocator:
    """Finds the features of attached indices."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._with_sides: LruCache[str, frozenset[str]] = LruCache(_MAX_REMEMBERED)
        self._known = KnownMarks()

    def expects_ids(self, caller: Caller) -> bool:
        """Return whether a recent search of the caller's target needed ids to find features."""
        return self._with_sides.get(caller.indices) is not None

    async def needs_ids(self, hits: Sequence[Mapping[str, Any]], caller: Caller) -> bool:
        """Return whether ids are needed to find the features of hits in a side index.

        If there is a side index, :meth:`expects_ids` returns True for the next searches of the same target.
        """
        without = own_keys(hits).without
        if not without:
            return False
        indices = sorted({str(hits[place]["_index"]) for place in without})
        of_indices = await asyncio.gather(*(self._marks(index, [], caller) for index in indices))
        attached = frozenset(index for index, marks in zip(indices, of_indices, strict=True) if marks is not None)
        if attached:  # hits of an index that is not attached can be named by ids only
            self._with_sides.put(caller.indices, attached if len(attached) == len(indices) else frozenset())
        return bool(attached)

    def sources_by_writes(self, caller: Caller) -> frozenset[Attachment]:
        """Return the attached indices of the caller's target if a hit's `_seq_no` tells which document it is.

        That is so if each has one shard, and the caller's searches have lately read its side index.
        """
        attached = self._with_sides.get(caller.indices) if caller.indices else None
        known = [self.known(index, caller) for index in attached or ()]
        sources = frozenset(source for source in known if source is not None and source.one_shard)
        return sources if len(sources) == len(known) else frozenset()

    def name(
        self,
        hits: Sequence[dict[str, Any]],
        sources: Iterable[Attachment],
        read: Iterable[Mapping[str, Any]] = (),
    ) -> list[dict[str, Any]]:
        """Give bare hits of some attached indices their ids, by their writes, in place; return those not known.

        The ids hold if the sources are :meth:`confirmed` afterwards. ``read`` are hits with ids, named first.
        """
        by_index = {attachment.source: attachment for attachment in sources}
        ids = {(str(hit["_index"]), _seq_no(hit)): RoutedId.of(hit) for hit in read}
        unknown = []
        for place in own_keys(hits).without:
            index, seq_no = str(hits[place]["_index"]), _seq_no(hits[place])
            document = ids.get((index, seq_no))
            if document is None and index in by_index and seq_no is not None:
                document = self._known.document(by_index[index], seq_no)
            if document is None:
                unknown.append(hits[place])
            else:
                hits[place].update(document.as_hit())
        return unknown

    def put_names(self, hits: Iterable[Mapping[str, Any]], sources: Iterable[Attachment]) -> None:
        """Remember the writes of hits with ids, of sources that were :meth:`confirmed` after their search."""
        by_index = {attachment.source: attachment for attachment in sources}
        for hit in hits:
            seq_no = _seq_no(hit)
            if seq_no is not None:
                self._known.put_document(by_index[hit["_index"]], seq_no, RoutedId.of(hit))

    def examine(self, caller: Caller) -> None:
        """Let the next search find out anew which indices of the caller's target are attached."""
        self._with_sides.drop(caller.indices)

    async def locate(
        self, hits: Sequence[Mapping[str, Any]], caller: Caller, *, assume: bool = False
    ) -> FeatureLocations:
        """Return where the features of hits are, in the documents themselves or in side indices.

        Hits that may be of an attached index have `_id` and the doc value of `_seq_no`. With ``assume`` the result is
        to be :meth:`confirmed` before it is used.
        """
        located = own_keys(hits)
        if not located.without:
            return located
        unverified: dict[int, DocumentKey] = {}
        without_own: dict[str, list[int]] = defaultdict(list)
        for place in located.without:
            index = str(hits[place]["_index"])
            if "_id" in hits[place] and ":" not in index:  # side indices of other clusters are not searched
                without_own[index].append(place)
        parts = await asyncio.gather(
            *(
                self._in_side_index(index, places, hits, located, caller, assume=assume)
                for index, places in without_own.items()
            )
        )
        for part in parts:
            unverified |= part
        located.stale = await self._put_if_same_text(hits, unverified, located.keys, caller)
        return located

    async def current(
        self, hits: Sequence[Mapping[str, Any]], marks: Mapping[RoutedId, FeatureMark], uuid: str | None, caller: Caller
    ) -> list[DocumentKey | None]:
        """Return for each hit of an attached index the key of its features, None if they are not of its present text.

        The hits are of one index, just returned to the caller, with `_id` and the doc value of `_seq_no`; ``marks`` are
        those of their features in the side index. Texts are compared if the source's ``uuid`` is unknown.
        """
        keys: list[DocumentKey | None] = [None] * len(hits)
        unverified = _put_verified(hits, range(len(hits)), marks, uuid, keys)
        await self._put_if_same_text(hits, unverified, keys, caller)
        return keys

    def known(self, index: str, caller: Caller) -> Attachment | None:
        """Return what a search with a caller's credentials has lately read of an index's side index."""
        return self._known.attachment(self._engine.as_side_reader(caller).caller, index)

    async def marks_of_hits(
        self, hits: Mapping[RoutedId, Mapping[str, Any]], side: str, index: str, caller: Caller
    ) -> dict[RoutedId, FeatureMark] | None:
        """Return the marks of hits of a side index, by documents of the source; None if the side index is gone.

        The hits have :data:`DOCUMENT_FIELDS`: a mark that was written since it was read is read again.
        """
        known = zip(hits, self._known.marks(side, hits), strict=True)
        marks = {document: mark for document, mark in known if mark and mark.version == _seq_no(hits[document])}
        if len(marks) < len(hits):
            read = await self._marks_in(
                side, index, (document.id for document in hits if document not in marks), caller
            )
            return None if read is None else marks | read
        return marks

    def last_nearest(self, side: str, search: Mapping[str, Any]) -> Sequence[RoutedId]:
        """Return the documents of the source that the same search of a side index has last found."""
        return self._known.nearest(side, search)

    def put_nearest(self, side: str, search: Mapping[str, Any], documents: Sequence[RoutedId]) -> None:
        """Remember the documents of the source that a search of a side index has found."""
        self._known.put_nearest(side, search, documents)

    async def confirmed(self, assumed: Iterable[Attachment], caller: Caller, *, since: float) -> bool:
        """Return whether sources and side indices are still those that were assumed; those that are not are forgotten.

        ``since`` is `time.perf_counter` after the searches whose hits were compared: no UUID comes back.
        """
        return all(await asyncio.gather(*(self._confirmed(attachment, caller, since) for attachment in assumed)))

    async def _confirmed(self, assumed: Attachment, caller: Caller, since: float) -> bool:
        if self._known.is_confirmed(assumed, since):
            return True
        sent = time.perf_counter()
        settings = await self._settings(assumed.source, caller)
        if settings.get(assumed.source, {}).get(_UUID) == assumed.uuid and assumed.side in settings:
            self._known.confirm(assumed, sent)
            return True
        self._known.forget(self._engine.as_side_reader(caller).caller, assumed)
        return False

    async def _in_side_index(
        self,
        index: str,
        places: Sequence[int],
        hits: Sequence[Mapping[str, Any]],
        located: FeatureLocations,
        caller: Caller,
        *,
        assume: bool,
    ) -> dict[int, DocumentKey]:
        """Find the features of one index's hits in its side index; return those whose text is to be compared."""
        known = self.known(index, caller) if assume else None
        if known is not None:
            located.assumed |= {known}
            located.sides[index] = known.side
            places = self._put_known(hits, places, known, located.keys)
            ids = [RoutedId.of(hits[place]).id for place in places]
            marks = await self._marks(index, ids, caller) if ids else None
            return _put_verified(hits, places, marks or {}, known.uuid, located.keys)
        ids = [RoutedId.of(hits[place]).id for place in places]
        marks, settings = await asyncio.gather(self._marks(index, ids, caller), self._settings(index, caller))
        if marks is None:
            return {}
        of_source = settings.get(index, {})
        uuid, side = of_source.get(_UUID), next((mark.key.index for mark in marks.values()), "")
        if uuid is not None and side in settings:
            attachment = Attachment(index, uuid, of_source.get(_SHARDS) == "1", side)
            self._known.put_attachment(self._engine.as_side_reader(caller).caller, attachment)
        located.sides[index] = side
        return _put_verified(hits, places, marks, uuid, located.keys)

    def _put_known(
        self,
        hits: Sequence[Mapping[str, Any]],
        places: Sequence[int],
        known: Attachment,
        keys: list[DocumentKey | None],
    ) -> list[int]:
        """Put the keys of hits whose last writes are known into ``keys``; return the places of the others."""
        others = []
        marks = self._known.marks(known.side, (RoutedId.of(hits[place]) for place in places))
        for place, mark in zip(places, marks, strict=True):
            if mark is not None and _is_of(mark, known.uuid, hits[place]):
                keys[place] = mark.key
            else:
                others.append(place)
        return others

    async def _marks(self, index: str, ids: Iterable[str], caller: Caller) -> dict[RoutedId, FeatureMark] | None:
        """Return the marks of documents in an index's side index; None if there is no side index."""
        if ":" in index:  # side indices of other clusters are not searched
            return None
        return await self._marks_in(side_alias(index), index, ids, caller)

    async def _marks_in(
        self, side: str, index: str, ids: Iterable[str], caller: Caller
    ) -> dict[RoutedId, FeatureMark] | None:
        """Return the marks of an index's documents in a side index, by its name or alias; None if there is none."""
        ids = sorted({*ids})
        parts = [ids[start : start + _DOCUMENTS_A_READ] for start in range(0, len(ids), _DOCUMENTS_A_READ)] or [[]]
        answers = await asyncio.gather(*(self._marks_of(side, index, part, caller) for part in parts))
        marks: dict[RoutedId, FeatureMark] = {}
        for answer in answers:
            if answer is None:
                return None
            marks |= answer
        return marks

    async def _marks_of(
        self, side: str, index: str, ids: Sequence[str], caller: Caller
    ) -> dict[RoutedId, FeatureMark] | None:
        """Return the marks of some documents, in one search: so all are of one side index and one encoder."""
        body = {
            "query": {"ids": {"values": ids}},
            "size": MAX_KNN_CANDIDATES if ids else 0,
            "stored_fields": "_none_",
            "docvalue_fields": [*MARK_FIELDS],
            "track_total_hits": False,
        }
        engine = self._engine.as_side_reader(caller)
        answer = await _or_none(index, engine.search([side], body, _NO_ERROR_IF_MISSING, failing=_FAILING))
        if answer is None or not answer["_shards"]["total"]:
            return None
        return self.marks_in_hits(answer["hits"]["hits"])

    def marks_in_hits(self, hits: Iterable[Mapping[str, Any]]) -> dict[RoutedId, FeatureMark]:
        """Return, and remember, the marks in hits of a side index, which have :data:`MARK_FIELDS`."""
        marks = dict(mark for mark in map(_mark_of, hits) if mark is not None)
        self._known.put_marks(marks)
        return marks

    async def uuid(self, index: str, caller: Caller) -> str | None:
        """Return an index's UUID; None if the caller may not read it."""
        return (await self._settings(index, caller)).get(index, {}).get(_UUID)

    async def _settings(self, index: str, caller: Caller) -> dict[str, Mapping[str, str]]:
        """Return UUID and number of shards of an index and of its side index, by name; none that may not be read."""
        names = quote(f"{index},{side_alias(index)}", safe=",")
        engine = self._engine.as_side_reader(caller)
        path, query_string = f"/{names}/_settings/{_UUID},{_SHARDS}".encode(), _FLAT
        form = {"*": {"settings": dict}}
        answer = await _or_none(index, engine.json("GET", path, query_string, failing=_FAILING, form=form))
        return {name: described["settings"] for name, described in (answer or {}).items()}

    async def _put_if_same_text(
        self,
        hits: Sequence[Mapping[str, Any]],
        unverified: Mapping[int, DocumentKey],
        keys: list[DocumentKey | None],
        caller: Caller,
    ) -> frozenset[int]:
        """Put the keys of hits whose present text is the encoded one into ``keys``; return the places of the others."""
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place, key in unverified.items():
            keys[place] = None
            groups[str(hits[place]["_index"]), key.index].append(place)
        parts = [
            (index, {place: unverified[place] for place in group[start : start + _DOCUMENTS_A_READ]})
            for (index, _), group in groups.items()
            for start in range(0, len(group), _DOCUMENTS_A_READ)
        ]
        for same in await asyncio.gather(*(self._same_text(index, hits, part, caller) for index, part in parts)):
            for place in same:
                keys[place] = unverified[place]
        return frozenset(place for place in unverified if keys[place] is None)

    async def _same_text(
        self, index: str, hits: Sequence[Mapping[str, Any]], unverified: Mapping[int, DocumentKey], caller: Caller
    ) -> list[int]:
        """Return the places of those hits of one index whose present text is the encoded one."""
        spec = await self._spec(index, next(iter(unverified.values())).index, caller)
        if spec is None:
            return []
        identities = {place: RoutedId.of(hits[place]) for place in unverified}
        body: dict[str, Any] = {
            "query": {
                "bool": {
                    "filter": [
                        {"ids": {"values": sorted({identifier for identifier, _ in identities.values()})}},
                        {"term": {"_index": index}},
                    ]
                }
            },
            "size": MAX_KNN_CANDIDATES,
            "_source": list(spec.text_fields),
            "track_total_hits": False,
        }
        naming = urlencode(caller.params).encode()
        engine = self._engine.as_caller(caller)  # with the caller's point in time
        answer = await _or_none(index, engine.search([index], body, naming, failing=_FAILING))
        if answer is None:
            return []
        texts = {RoutedId.of(hit): hit.get("_source") or {} for hit in answer["hits"]["hits"]}
        return [
            place
            for place, identity in identities.items()
            if identity in texts and _hash_of(texts[identity], spec) == unverified[place].hash
        ]

    async def _spec(self, index: str, side: str, caller: Caller) -> IndexSpec | None:
        """Return the spec of a side index; None if it cannot be read."""
        engine = self._engine.as_side_reader(caller)
        path = engine.caller.path([side], "_mapping")
        form = {"*": {"mappings": dict}}
        answer = await _or_none(index, engine.json("GET", path, failing=_FAILING, form=form))
        if answer is None or side not in answer:
            return None
        return IndexSpec.from_mapping(side, answer[side]["mappings"])


async def _or_none(index: str, request: Awaitable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the engine's answer; None if there is no such index, or the caller may not read it."""
    try:
        return await request
    except NotThere:
        return None
    except NotForCaller as error:
        log.warning("features in a side index cannot be read", index=index, status=error.upstream_status)
        return None


def document_of(hit: Mapping[str, Any]) -> RoutedId | None:
    """Return the source document of a side index's hit, which has :data:`DOCUMENT_FIELDS`; None if it is of none."""
    fields = hit.get("fields", {})
    identifiers = fields.get(ID, ())
    return RoutedId(str(identifiers[0]), fields.get(ROUTING, [None])[0]) if len(identifiers) == 1 else None


def _mark_of(hit: Mapping[str, Any]) -> tuple[RoutedId, FeatureMark] | None:
    """Return the source document of a side index's hit, and the mark of its features; None without features."""
    fields, document = hit.get("fields", {}), document_of(hit)
    values = [fields.get(name, ()) for name in (STATE, ENCODER, HASH, SOURCE, SEQ_NO)]
    if document is None or any(len(value) != 1 for value in values):
        return None
    (state,), (encoder,), (content,), (source,), (seq_no,) = values
    if state != READY or not is_mark(content, encoder):
        return None
    key = DocumentKey(intern(hit["_index"]), intern(encoder), content, side=True)  # thousands of marks share them
    return document, FeatureMark(key, intern(source), seq_no, version=_seq_no(hit))


def _is_of(mark: FeatureMark, uuid: str | None, hit: Mapping[str, Any]) -> bool:
    """Return whether a mark is of a hit's last write."""
    return mark.source == uuid and mark.seq_no == _seq_no(hit)


def _put_verified(
    hits: Sequence[Mapping[str, Any]],
    places: Iterable[int],
    marks: Mapping[RoutedId, FeatureMark],
    uuid: str | None,
    keys: list[DocumentKey | None],
) -> dict[int, DocumentKey]:
    """Put the keys of hits whose features are of their last write into ``keys``; return the others with features."""
    unverified = {}
    for place in places:
        mark = marks.get(RoutedId.of(hits[place]))
        if mark is None:
            continue
        if _is_of(mark, uuid, hits[place]):
            keys[place] = mark.key
        else:
            unverified[place] = mark.key
    return unverified


def _seq_no(hit: Mapping[str, Any]) -> int | None:
    number: int | None = (hit.get("fields") or {}).get(SEQ_NO_FIELD, [None])[0]
    return number


def _hash_of(document: Mapping[str, Any], spec: IndexSpec) -> str | None:
    try:
        text, spans = compose(document, spec.text_fields)
    except InvalidRequest:
        return None
    return content_hash(text, spans, spec)
