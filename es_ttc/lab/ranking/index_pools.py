"""The signals of judged queries, logged from an index: what served searches would score, in few requests.

The first passes and the kNN searches of many queries are one `_msearch`. Then the features of all documents that were
found are read, each document's once, in blocks; a block's documents are scored for every query that found them. So the
number of requests grows with the documents, not with the queries, and only one block is in memory.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import numpy as np

from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.errors import InvalidRequest, MissingFeature
from es_ttc.index.attach.feature_locations import alike_locations
from es_ttc.index.mappings.attached import VERSION
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.queries import matching
from es_ttc.index.mappings.spec import ENCODER, HASH, IndexSpec
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.searcher import Progress, silent
from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.blend.rescorer import ALWAYS
from es_ttc.rescorers.blend.signals import (
    SIGNALS,
    SignalName,
    SignalScores,
    all_signal_scores,
    has_signal,
    read_by,
    signal_matrix,
)
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust, trust_in_vectors, weight_of_words
from es_ttc.serving.features.attached import Identity, changed_inside, identity_of, own_key
from es_ttc.serving.features.decoding import Stored, consistent
from es_ttc.serving.features.keys import SEQ_NO, DocumentKey, unreadable
from es_ttc.serving.features.store import columns, numbers_of
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller, RawHeaders
from es_ttc.serving.knn.bodies import Body, search_body
from es_ttc.serving.knn.engine_search import SearchContext
from es_ttc.serving.knn.msearch import BatchedMsearch, BatchedSearches, MsearchSender, SearchClient, search_client
from es_ttc.serving.knn.searched_indices import SearchedIndices, searched_indices_of
from es_ttc.serving.knn.side_index_search import SideIndexSearch
from es_ttc.serving.process import OnlyProcess
from es_ttc.serving.rescore.candidates import any_clause, nearest_in_side_indices, outside
from es_ttc.settings import GatewaySettings
from es_ttc.vectors.tokens import Float32

QUERIES_TOGETHER = 25
"""Queries of one `_msearch`: a first pass and a kNN search each."""
DOCUMENTS_TOGETHER = 256
"""Documents of a block, whose features are in memory at the same time."""
_LOCATED_TOGETHER = 1000

T = TypeVar("T")
Hit = Mapping[str, Any]
Document = tuple[str, Identity]
"""A document's index, and its id and routing."""


@dataclass(frozen=True, slots=True)
class IndexSource:
    """The index whose documents are scored."""

    name: str
    settings: GatewaySettings
    load: Callable[[IndexSpec], Encoder]
    window: int = 100


@dataclass(frozen=True, slots=True)
class _Found:
    """What one query finds."""

    hits: Sequence[Hit]
    first: int


def collect_from_index(
    judged: Collection,
    source: IndexSource,
    signals: Sequence[SignalName] = DEFAULT_SIGNALS,
    *,
    fields: Sequence[str] = (),
    progress: Progress = silent,
) -> Pools:
    """Score every signal once for each query's pool: what a gateway would score for a search of the query's text.

    Raises:
        InvalidRequest: The index has no features, or the indices of an alias differ in text fields or encoder.
        MissingFeature: It lacks what a signal reads, or a numeric field.
        EngineError: The engine failed.
    """
    signals = tuple(name for name in SIGNALS if name in signals or name in DEFAULT_SIGNALS)
    with InterruptibleRunner() as runner:
        return runner.run(_collect(judged, source, signals, fields, progress))


async def _collect(
    judged: Collection,
    source: IndexSource,
    signals: Sequence[SignalName],
    fields: Sequence[str],
    progress: Progress,
) -> Pools:
    spec, described = await _index(source)
    encoder = source.load(spec)
    gateway = Gateway(source.settings, lambda _name, _folder: encoder, OnlyProcess())
    try:
        async with gateway.upstream:
            caller = Caller(gateway.upstream.service_headers(), quote(source.name, safe=",:*"))
            log = PoolLog(gateway, caller, spec.text_fields, encoder, signals, fields, progress, window=source.window)
            pools = await log.pools(judged)
    finally:
        await gateway.close()
    return replace(pools, settings={"index": source.name, "engine": described, **pools.settings})


async def _index(source: IndexSource) -> tuple[IndexSpec, str]:
    """Return the spec of an index's features, and the engine's product and version."""
    engine = await connect(source.settings)
    try:
        located = await alike_locations(engine, source.name)
        capabilities = await engine.capabilities()
    finally:
        await engine.close()
    return located[0].spec, f"{capabilities.product} {'.'.join(map(str, capabilities.version))}"


async def log_for_caller(
    gateway: Gateway, headers: RawHeaders, index: str, spec: IndexSpec, encoder: Encoder, queries: Mapping[str, str]
) -> Pools:
    """Score blend's signals for queries in a gateway, with a caller's credentials.

    Raises:
        MissingFeature: The index lacks what a signal reads.
        InvalidRequest: No query finds a document.
        EngineError: The engine failed.
    """
    caller = Caller(headers, quote(index, safe=""))
    log = PoolLog(gateway, caller, spec.text_fields, encoder, DEFAULT_SIGNALS, (), silent)
    return await log.pools(Collection(index, "pool", (), queries, {query: {} for query in queries}))


def _require_signals(pools: Sequence[Pool], signals: Sequence[SignalName], index: str) -> None:
    """Refuse an index that lacks what a signal reads."""
    scores = np.concatenate([pool.scores for pool in pools])
    if not len(scores):
        raise InvalidRequest(f"no query finds a document in index [{index}]: are these its queries?")
    lacking = [name for name, column in zip(signals, scores.T, strict=True) if np.isnan(column).all()]
    if lacking:
        flag = " --chunks" if "sentences" in lacking else ""
        raise MissingFeature(
            f"no document of index [{index}] has what the signals [{', '.join(lacking)}] read: add it with `es-ttc "
            f"attach{flag}`, or make an index that has it with `es-ttc index create{flag}` and `es-ttc ingest`"
        )


class PoolLog:
    """Logs pools."""

    def __init__(
        self,
        gateway: Gateway,
        caller: Caller,
        text_fields: Sequence[str],
        encoder: Encoder,
        signals: Sequence[SignalName],
        fields: Sequence[str],
        progress: Progress,
        *,
        window: int = 100,
    ) -> None:
        self._gateway = gateway
        self._caller = caller
        self._window = window
        self._text_fields = text_fields
        self._encoder = encoder
        self._signals = signals
        self._fields = fields
        self._progress = progress
        self._features = (read_by(signals) | {Feature.NORMS}) & FEATURES.keys()
        self._needs = read_by(name for name in signals if name in ALWAYS) & FEATURES.keys()

    async def pools(self, judged: Collection) -> Pools:
        """Return the pools of all queries.

        Raises:
            MissingFeature: No document of any pool has a signal.
            InvalidRequest: No query finds a document.
        """
        fix = "name a field of a numeric type, with doc values"
        await self._gateway.numbers.require(self._fields, "[field] names", self._caller, fix=fix)
        queries = await self._encoded(list(judged.queries.values()))
        found = await self._search(queries)
        keys = await self._located(found)
        scores, reads = await self._scored(queries, found, keys)
        pools = [
            self._pool(query, judged.qrels[query], one, matrix, read)
            for query, one, matrix, read in zip(judged.queries, found, scores, reads, strict=True)
        ]
        _require_signals(pools, self._signals, unquote(self._caller.indices))
        settings = {"window": self._window, "first_pass": "bm25"}
        return Pools(
            judged.name, judged.split, self._encoder.identity.key, tuple(self._signals), tuple(pools), settings
        )

    async def _encoded(self, texts: Sequence[str]) -> list[Query]:
        queries = []
        for text in texts:
            encoded = await self._gateway.encoders.encode(self._encoder, (text,), tokens=True)
            queries.append(encoded.query)
            self._progress("encoding queries", len(queries), len(texts))
        return queries

    async def _search(self, queries: Sequence[Query]) -> list[_Found]:
        """Return what the queries find: their first passes and the documents nearest to them."""
        path = f"/{self._caller.indices}/_msearch".encode()
        side_caller = self._gateway.attached.side_caller(self._caller)
        sender = MsearchSender(self._gateway.upstream, self._caller, side_caller, path, b"")
        batches: BatchedMsearch = BatchedSearches(sender.send)
        [member] = batches.join(1)
        found: list[_Found] = []
        async with batches.active(member):
            client = search_client(batches, member, b"{}")
            indices = await self._searched_indices(client)
            for some in _parts(queries, QUERIES_TOGETHER):
                found += await self._found(some, client, indices)
                self._progress("searching", len(found), len(queries))
        return found

    async def _searched_indices(self, client: SearchClient) -> SearchedIndices | None:
        """Return the indices whose vectors kNN searches; None if there are none that it can, as in a gateway."""
        product = await self._gateway.upstream.product()
        indices = await searched_indices_of(client, [], {}, unsearchable=product == "opensearch")
        try:
            indices.require_searchable()
        except MissingFeature:
            return None
        return None if indices.encoder is None else indices

    async def _found(
        self, queries: Sequence[Query], client: SearchClient, indices: SearchedIndices | None
    ) -> list[_Found]:
        window, marks = self._window, self._marks
        bodies = [{"query": matching(one.text, self._text_fields), "size": window, **marks} for one in queries]
        answers, nearest = await asyncio.gather(client.search(bodies), self._nearest(queries, client, indices))
        in_sides = indices is not None and bool(indices.sides)
        found = []
        for answer, near in zip(answers, nearest, strict=True):
            first = answer["hits"]["hits"]
            named = in_sides or any(map(changed_inside, near))
            found.append(_Found([*first, *outside(first, near, named=named)], len(first)))
        return found

    async def _nearest(
        self, queries: Sequence[Query], client: SearchClient, indices: SearchedIndices | None
    ) -> list[list[dict[str, Any]]]:
        """Return for each query the hits of the documents nearest to it."""
        if indices is None or indices.encoder is None:
            return [[] for _ in queries]
        encoder, window, marks = indices.encoder, self._window, self._marks
        product = await self._gateway.upstream.product()
        vectors = np.stack([query.vectors[0] for query in queries])
        if indices.sides:
            context = SearchContext(product, self._caller, encoder, {}, float("inf"))
            search = SideIndexSearch(any_clause(product), context, indices, client, self._gateway, details=False)
            return await nearest_in_side_indices(
                search, vectors, window, lambda ids: {"query": {"ids": {"values": [*ids]}}, **marks}, client.search
            )
        answers = await client.search([{**search_body(product, vector, window, []), **marks} for vector in vectors])
        return [[hit for hit in answer["hits"]["hits"] if _encoder_of(hit) == encoder] for answer in answers]

    @property
    def _marks(self) -> Body:
        fields = [HASH, ENCODER, VERSION, SEQ_NO, *self._fields]
        return {"_source": False, "docvalue_fields": fields, "version": True, "track_total_hits": False}

    async def _located(self, found: Sequence[_Found]) -> dict[Document, DocumentKey]:
        """Return the keys of the documents' features, of each document once; none of those that cannot be used."""
        hits = {_document(hit): hit for one in found for hit in one.hits}
        keys: dict[Document, DocumentKey] = {}
        for some in _parts([*hits.items()], _LOCATED_TOGETHER):
            located = await self._gateway.attached.locate([hit for _, hit in some], self._caller)
            for (document, _), key in zip(some, located.keys, strict=True):
                if key is not None and key.encoder == self._encoder.identity.key and unreadable(key) is None:
                    keys[document] = key
        return keys

    async def _scored(
        self, queries: Sequence[Query], found: Sequence[_Found], keys: Mapping[Document, DocumentKey]
    ) -> tuple[list[Float32], list[list[float]]]:
        """Return each query's ``(k, s)`` scores, NaN where a document lacks a signal, and the shares that were read."""
        scores = [np.full((len(one.hits), len(self._signals)), np.nan, np.float32) for one in found]
        reads: list[list[float]] = [[] for _ in found]
        places: dict[DocumentKey, list[tuple[int, int]]] = defaultdict(list)
        for number, one in enumerate(found):
            for place, hit in enumerate(one.hits):
                if (key := keys.get(_document(hit))) is not None:
                    places[key].append((number, place))
        done = 0
        for block in _parts([*places], DOCUMENTS_TOGETHER):
            read = await self._gateway.features.window(block, self._features, self._caller)
            await self._gateway.scoring.run(self._score_block, queries, block, read.documents, places, scores, reads)
            done += len(block)
            self._progress("reading documents", done, len(places))
        return scores, reads

    def _score_block(
        self,
        queries: Sequence[Query],
        block: Sequence[DocumentKey],
        documents: Sequence[Stored],
        places: Mapping[DocumentKey, Sequence[tuple[int, int]]],
        scores: Sequence[Float32],
        reads: Sequence[list[float]],
    ) -> None:
        """Put the scores of a block's documents into those of the queries."""
        of_query: dict[int, list[tuple[int, Stored]]] = defaultdict(list)
        for key, stored in zip(block, documents, strict=True):
            if self._needs <= stored.keys():
                for number, place in places[key]:
                    of_query[number].append((place, consistent(stored)))
        for number, held in of_query.items():
            rows = [place for place, _ in held]
            window = Window(
                [str(place) for place in rows],
                np.zeros(len(rows), np.float32),
                **columns([stored for _, stored in held], self._features, partial=True),
            )
            scores[number][rows] = _signals(self._signals, queries[number], window)
            reads[number] += [one.read for one in window.tokens or () if len(one)]

    def _pool(
        self, query: str, judged: Mapping[str, int], found: _Found, scores: Float32, reads: Sequence[float]
    ) -> Pool:
        in_first_pass = np.arange(len(found.hits)) < found.first
        first_pass = np.array([hit.get("_score") or 0.0 for hit in found.hits], np.float32)
        scores[:, self._signals.index("lexical")] = first_pass
        names = tuple(str(hit["_id"]) for hit in found.hits)
        words = weight_of_words(Window(names, first_pass, present={Feature.FIRST_PASS: in_first_pass}))
        return Pool(
            query,
            names,
            scores,
            Trust(words, trust_in_vectors(reads)),
            grades=np.array([judged.get(name, 0) for name in names], np.int64),
            behind=np.zeros(0, np.int64),
            judged=np.array(sorted(judged.values(), reverse=True), np.int64),
            numbers=numbers_of(found.hits, self._fields),
        )


def _signals(names: Sequence[SignalName], query: Query, window: Window) -> Float32:
    """Return the signals of some documents, ``(m, s)``; NaN where one is missing. None depends on other documents."""
    found = all_signal_scores([name for name in names if has_signal(name, query, window)], query, window)
    nothing = SignalScores(np.zeros(len(window), np.float32), np.zeros(len(window), np.bool_))
    return signal_matrix(found.get(name, nothing) for name in names)


def _parts(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), most):
        yield values[start : start + most]


def _encoder_of(hit: Hit) -> str | None:
    key = own_key(hit)
    return None if key is None else key.encoder


def _document(hit: Hit) -> Document:
    return str(hit["_index"]), identity_of(hit)
