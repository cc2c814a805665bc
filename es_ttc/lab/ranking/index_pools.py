"""The signals of judged queries, logged from an index: what served searches would score, in few requests.

The first passes and the kNN searches of many queries are one `_msearch`. Then the features of all documents that were
found are read, each document's once, in blocks; a block's documents are scored for every query that found them. So the
number of requests grows with the documents, not with the queries, and only one block is in memory.
"""

import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson

from es_ttc.common.files import replace_file
from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.heads import Head
from es_ttc.encoders.query_adapters import QueryAdapters
from es_ttc.engine.connect import connected
from es_ttc.errors import InvalidRequest, MissingFeature
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.mappings.fields import FEATURES
from es_ttc.index.mappings.spec import CHUNKS, IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, only
from es_ttc.lab.evaluation.provenance import product_and_version
from es_ttc.lab.evaluation.rankings import ReportStage, silent
from es_ttc.lab.ranking.pools import Pool, Pools, pool_grades, window_pool
from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.blend.rescorer import BASE_SIGNALS
from es_ttc.rescorers.blend.signals import SIGNALS, SignalName, read_by, signal_matrix
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust
from es_ttc.serving.features.keys import DocumentId
from es_ttc.serving.features.missing import how_to_add
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller, RawHeaders
from es_ttc.serving.library import FoundWindow, IndexReader, Key, own_gateway, parts, window_of
from es_ttc.settings import GatewaySettings
from es_ttc.vectors.tokens import Float32

MAX_QUERIES_KEPT_TOGETHER = 100  # queries of a part that is kept
MAX_DOCUMENTS_TOGETHER = 256  # documents of a block, whose features are in memory at the same time


@dataclass(frozen=True, slots=True)
class IndexSource:
    """The index whose documents are scored."""

    name: str
    settings: GatewaySettings
    load: Callable[[IndexSpec], Encoder]
    window: int = 100


def collect_from_index(
    judged: Collection,
    source: IndexSource,
    signals: Sequence[SignalName] = DEFAULT_SIGNALS,
    *,
    fields: Sequence[str] = (),
    head: Head | None = None,
    progress: ReportStage = silent,
    keep: Path | None = None,
) -> Pools:
    """Score every signal once for each query's pool: what a gateway would score for a search of the query's text.

    `head` replaces the settings' adapter of queries. The folder `keep` holds what was read, for later calls.
    """
    signals = tuple(name for name in SIGNALS if name in signals or name in DEFAULT_SIGNALS)
    with InterruptibleRunner() as runner:
        return runner.run(_collect(judged, source, signals, fields, head, progress, keep))


async def _collect(
    judged: Collection,
    source: IndexSource,
    signals: Sequence[SignalName],
    fields: Sequence[str],
    head: Head | None,
    progress: ReportStage,
    keep: Path | None,
) -> Pools:
    spec, described = await _index(source)
    encoder = source.load(spec)
    async with own_gateway(source.settings, encoder) as gateway:
        if head is not None:
            gateway.encoders.adapters = QueryAdapters.of_all(encoder.identity, head)
        caller = gateway.upstream.gateway_caller(quote(source.name, safe=",:*"))
        reader = IndexReader(gateway, caller, encoder, fields)
        log = PoolLog(reader, spec, signals, silent if keep else progress, window=source.window)
        pools = await (log.pools(judged) if keep is None else _in_parts(log, judged, keep, progress))
    return log.together(judged, pools, {"index": source.name, "engine": described})


async def _in_parts(log: "PoolLog", judged: Collection, folder: Path, progress: ReportStage) -> list[Pool]:
    """Return the pools of all queries, read part by part; each part is kept in a file."""
    found: list[Pool] = []
    for number, some in enumerate(parts([*judged.queries], MAX_QUERIES_KEPT_TOGETHER)):
        file, asked = folder / f"{number}.npz", only(judged, {*some})
        if file.exists():
            found += read_pools(file, asked)
        else:
            write_pools(file, read := await log.pools(asked))
            found += read
        progress("reading what queries find", len(found), len(judged.queries))
    return found


async def _index(source: IndexSource) -> tuple[IndexSpec, str]:
    """Return the spec of an index's features, and the engine's product and version."""
    async with connected(source.settings) as engine:
        spec = (await Indices.behind(engine, source.name)).shared_spec()
        return spec, product_and_version(await engine.capabilities())


async def log_for_caller(
    gateway: Gateway, headers: RawHeaders, index: str, spec: IndexSpec, encoder: Encoder, queries: Mapping[str, str]
) -> Pools:
    """Score blend's signals for queries in a gateway, with a caller's credentials."""
    reader = IndexReader(gateway, Caller(headers, quote(index, safe="")), encoder)
    log = PoolLog(reader, spec, DEFAULT_SIGNALS, silent)
    asked = Collection(index, "pool", (), queries, {query: {} for query in queries})
    return log.together(asked, await log.pools(asked), {"index": index})


def _require_signals(pools: Sequence[Pool], signals: Sequence[SignalName], index: str) -> None:
    scores = np.concatenate([pool.scores for pool in pools])
    if not len(scores):
        raise InvalidRequest(f"no query finds a document in index [{index}]: are these its queries?")
    lacking = [name for name, column in zip(signals, scores.T, strict=True) if np.isnan(column).all()]
    if lacking:
        fix = how_to_add([CHUNKS] if "sentences" in lacking else [])
        raise MissingFeature(f"no document of index [{index}] has what the signals [{', '.join(lacking)}] read: {fix}")


@dataclass
class PoolLog:
    """Logs pools."""

    reader: IndexReader
    spec: IndexSpec
    signals: Sequence[SignalName]
    progress: ReportStage
    window: int = 100

    def __post_init__(self) -> None:
        self._features = frozenset((read_by(self.signals) | {Feature.NORMS}) & FEATURES.keys())
        self._needs = read_by(name for name in self.signals if name in BASE_SIGNALS) & FEATURES.keys()

    async def pools(self, judged: Collection) -> list[Pool]:
        """Return the pools of all queries."""
        await self.reader.require_fields()
        queries = []
        for text in judged.queries.values():
            queries.append(await self.reader.encoded(text))
            self.progress("encoding queries", len(queries), len(judged.queries))
        found = await self.reader.windows(
            queries,
            self.spec.text_fields,
            self.window,
            lambda done: self.progress("searching", done, len(queries)),
        )
        keys = await self.reader.keys([hit for one in found for hit in one.hits])
        scored = await self._scored(queries, found, keys)
        return [
            self._pool(query, judged.qrels[query], asked, one, scores)
            for query, asked, one, scores in zip(judged.queries, queries, found, scored, strict=True)
        ]

    def together(self, judged: Collection, pools: Sequence[Pool], about: Mapping[str, str]) -> Pools:
        """Return the pools of an index as one; refuse an index that lacks what a signal reads."""
        _require_signals(pools, self.signals, about["index"])
        settings = {**about, "window": self.window, "first_pass": "bm25"}
        return Pools(judged.name, judged.split, self.spec.encoder.key, tuple(self.signals), tuple(pools), settings)

    async def _scored(
        self, queries: Sequence[Query], found: Sequence[FoundWindow], keys: Mapping[DocumentId, Key]
    ) -> list["_Scores"]:
        shape = len(self.signals)
        scored = [
            _Scores(np.full((len(one.hits), shape), np.nan, np.float32), [], [None] * len(one.hits)) for one in found
        ]
        places: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        for number, one in enumerate(found):
            for place, hit in enumerate(one.hits):
                if (key := keys.get(DocumentId.of(hit))) is not None:
                    places[key].append((number, place))
        done = 0
        for block in parts([*places], MAX_DOCUMENTS_TOGETHER):
            documents = await self.reader.features(block, self._features)
            await self.reader.compute(self._score_block, queries, block, documents, places, scored)
            done += len(block)
            self.progress("reading documents", done, len(places))
        return scored

    def _score_block(
        self,
        queries: Sequence[Query],
        block: Sequence[Key],
        documents: Sequence[Mapping[Feature, Any]],
        places: Mapping[Key, Sequence[tuple[int, int]]],
        scored: Sequence["_Scores"],
    ) -> None:
        of_query: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        for key, stored in zip(block, documents, strict=True):
            if self._needs <= stored.keys():
                for number, place in places[key]:
                    of_query[number].append((place, stored))
        for number, held in of_query.items():
            rows = [place for place, _ in held]
            window = window_of([str(place) for place in rows], [stored for _, stored in held], self._features)
            scored[number].signals[rows] = signal_matrix(self.signals, queries[number], window)
            scored[number].reads.extend(token.read for token in window.tokens or () if len(token))
            for place, stored in held:
                scored[number].vectors[place] = stored.get(Feature.POOLED)

    def _pool(self, name: str, judged: Mapping[str, int], query: Query, found: FoundWindow, scored: "_Scores") -> Pool:
        first_pass = np.array([hit.get("_score") or 0.0 for hit in found.hits], np.float32)
        scored.signals[:, self.signals.index("lexical")] = first_pass
        window = Window(
            [str(hit["_id"]) for hit in found.hits],
            first_pass,
            numbers=self.reader.numbers(found.hits),
            present={Feature.FIRST_PASS: np.arange(len(found.hits)) < found.first},
        )
        trust = Trust.of(query, window, scored.reads)
        return replace(window_pool(name, query, window, scored.signals, trust, judged), vectors=scored.vectors)


@dataclass(frozen=True, slots=True)
class _Scores:
    """One query's ``(k, s)`` signals, NaN where a document lacks one; the shares that were read; pooled vectors."""

    signals: Float32
    reads: list[float]
    vectors: list[Float32 | None]


def write_pools(file: Path, pools: Sequence[Pool]) -> None:
    """Write pools that were read from an index; a document's vector once."""
    vectors = [vector for pool in pools for vector in pool.vectors]
    distinct = {id(vector): vector for vector in vectors if vector is not None}
    places = {None: -1} | {one: place for place, one in enumerate(distinct)}
    packed = io.BytesIO()
    np.savez(
        packed,
        ids=np.frombuffer(orjson.dumps([pool.documents for pool in pools]), np.uint8),
        scores=np.concatenate([pool.scores for pool in pools]),
        trust=np.array([astuple(pool.trust) for pool in pools]),
        queries=np.array([pool.query_vector for pool in pools]),
        vectors=np.array([*distinct.values()]),
        places=np.array([places[None if vector is None else id(vector)] for vector in vectors], np.intp),
    )
    replace_file(file, packed.getvalue())


def read_pools(file: Path, judged: Collection) -> list[Pool]:
    """Return what :func:`write_pools` wrote, for the same queries in the same order."""
    with np.load(file) as found:
        ids: list[list[str]] = orjson.loads(found["ids"].tobytes())
        scores, trust, queries, vectors, places = (
            found[name] for name in ("scores", "trust", "queries", "vectors", "places")
        )
    pools: list[Pool] = []
    start = 0
    for number, (names, query) in enumerate(zip(ids, judged.queries, strict=True)):
        own = slice(start, start := start + len(names))
        words, read, few_words = trust[number].tolist()
        pools.append(
            Pool(
                query,
                tuple(names),
                scores[own],
                Trust(words, read, bool(few_words)),
                *pool_grades(names, judged.qrels[query]),
                query_vector=queries[number],
                vectors=[None if place < 0 else vectors[place] for place in places[own]],
            )
        )
    return pools
