"""The methods with an engine: a temporary index, a gateway, and `_search` requests."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine, delete_if_there
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.ingest.dead_letters import DeadLetterList
from es_ttc.index.ingest.pipeline import IngestOptions, IngestResult, ingest
from es_ttc.index.ingest.readers import Documents, Inputs
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.queries import matching, nearest_body
from es_ttc.index.mappings.spec import VECTOR, IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.methods import Bm25Params, EvaluatedMethod, FirstPassName, FusionParams
from es_ttc.lab.evaluation.rankings import ReportStage, Run, depth_of, fuse_rankings, silent
from es_ttc.reranking.index_graph import build_graph, delete_graphs
from es_ttc.rescorers.base import Query
from es_ttc.retrievers.base import Retriever
from es_ttc.serving.server import running_gateway
from es_ttc.settings import EngineSettings, GatewaySettings
from es_ttc.vectors.tokens import Float32

MAX_RESULT_WINDOW = 10_000  # `index.max_result_window`, and the gateway's maximum window

_TIMEOUT = "120s"


@dataclass(frozen=True, slots=True)
class SearchHits:
    """Hits of one search, best first."""

    ids: list[str]
    scores: Float32


@dataclass(frozen=True, slots=True)
class SearchedIndex:
    """An index that is evaluated; `beside`: its features are in a side index."""

    runner: InterruptibleRunner
    engine: Engine
    name: str
    spec: IndexSpec
    documents: int
    truncated: int = 0
    beside: bool = False


@dataclass
class EngineSearcher:
    """Answers a collection's queries by searches of an index through a client of a gateway, one after the other."""

    index: SearchedIndex
    client: Engine
    collection: Collection
    queries: Sequence[Query]
    _: KW_ONLY
    first_pass: FirstPassName
    window: int | None
    depth: int | None = None

    def __post_init__(self) -> None:
        self._product = self.index.runner.run(self.index.engine.capabilities()).product
        pairs = zip(self.collection.queries.values(), self.queries, strict=True)
        self._vectors = {text: query.vectors[0] for text, query in pairs}
        self._reach = depth_of(self.window, self.documents)
        self._depth = self.depth or self._reach
        self._window = min(self.window or self.documents, self.documents)

    @property
    def documents(self) -> int:
        """Number of documents that are searched."""
        return self.index.documents

    @property
    def vectors(self) -> None:
        """None: the documents' vectors are only in the engine."""
        return

    def rank(self, method: EvaluatedMethod, progress: ReportStage = silent) -> Run:
        """Return the method's rankings of all queries; see :class:`es_ttc.lab.evaluation.rankings.Searcher`."""
        return self.index.runner.run(self._rank(method, progress))

    async def _rank(self, method: EvaluatedMethod, progress: ReportStage) -> Run:
        rankings: dict[str, list[str]] = {}
        scores: dict[str, Float32] = {}
        seconds: list[float] = []
        for query, text in self.collection.queries.items():
            start = time.perf_counter()
            page = await self._answer(method, text)
            seconds.append(time.perf_counter() - start)
            rankings[query], scores[query] = page.ids, page.scores
            progress(method.name, len(rankings), len(self.collection.queries))
        return Run(rankings, scores, np.array(seconds))

    async def _answer(self, method: EvaluatedMethod, text: str) -> SearchHits:
        if method.retriever is not None:
            return await self._retrieved(method.retriever, method, text)
        if method.rescorer is not None:
            return await self._rescored(method, text)
        if method.strategy is not None:
            rescore = {"window_size": self._window, "ttc": {"query_text": text, **_section(method.name, method)}}
            return await self._search({**self._retrieving(self.first_pass, text), "rescore": rescore}, self._depth)
        if method.rewriter is not None:
            section = {"query_text": text, **_section(method.name, method)}
            return await self._search({"query": {"ttc": section}}, self._depth)
        if isinstance(method.params, FusionParams):
            pages = [await self._search(self._retrieving(name, text), self._reach) for name in ("bm25", "dense")]
            fused = fuse_rankings([page.ids for page in pages], method.params.k)[: self._depth]
            return SearchHits(
                [document for document, _ in fused], np.array([score for _, score in fused], dtype=np.float32)
            )
        return await self._search(self._retrieving(method.name, text), self._depth)

    async def _retrieved(self, retriever: Retriever[Any], method: EvaluatedMethod, text: str) -> SearchHits:
        section = _section(retriever.name, method)
        clause = {"field": VECTOR, "query_text": text, "k": self._depth, "ttc": section}
        return await self._search({"knn": clause}, self._depth)

    async def _rescored(self, method: EvaluatedMethod, text: str) -> SearchHits:
        """Return the rescored window, followed by the rest of the first pass."""
        section = {"query_text": text, **_section(method.name, method)}
        first = self._retrieving("bm25" if method.joins_nearest else self.first_pass, text)
        rescore = {"rescore": {"window_size": self._window, "ttc": section}}
        head = await self._search({**first, **rescore}, min(self._window, self._depth))
        if len(head.ids) >= self._depth or self.window is None:
            return head
        found = set(head.ids)
        tail = [document for document in (await self._search(first, self._depth)).ids if document not in found]
        return SearchHits([*head.ids, *tail], head.scores)

    async def _search(self, body: Mapping[str, Any], size: int) -> SearchHits:
        name = self.index.name
        answer = await self.client.search(name, {**body, "size": size, "_source": False})
        if answer["timed_out"] or answer["_shards"]["failed"]:
            raise EngineError(
                f"index [{name}] answered from a part of its documents only (timed_out {answer['timed_out']}, "
                f"{answer['_shards']['failed']} shards failed): the figures would not be those of the collection"
            )
        hits = answer["hits"]["hits"]
        return SearchHits([hit["_id"] for hit in hits], np.array([hit["_score"] for hit in hits], dtype=np.float32))

    def _retrieving(self, name: str, text: str) -> dict[str, Any]:
        """Return the part of a body that finds documents; all of them if the window is the whole corpus."""
        reach = self._window if self.window is None else self._reach
        body = {"query": matching(text, self.index.spec.text_fields)} if name == "bm25" else self._nearest(text, reach)
        if self.window is not None:
            return body
        everything = {"match_all": {"boost": 0}}
        if "query" not in body:
            return {**body, "query": everything}
        return {"query": {"bool": {"must": [everything], "should": [body["query"]]}}}

    def _nearest(self, text: str, reach: int) -> dict[str, Any]:
        if self.index.beside:
            return {"knn": {"field": VECTOR, "query_text": text, "k": reach}}
        return nearest_body(self._vectors[text], reach, self._product)


def _section(name: str, method: EvaluatedMethod) -> dict[str, Any]:
    """Return a method's section of a request, without fallback to the engine's own ranking."""
    params = method.params.model_dump(mode="json", exclude_unset=True)
    return {"method": name, "params": params, "timeout": _TIMEOUT, "on_error": "fail"}


def require_possible(
    methods: Sequence[EvaluatedMethod], first_pass: FirstPassName, window: int | None, documents: int
) -> None:
    """Raise an error for what works in memory only, before anything is indexed."""
    if any(isinstance(method.params, Bm25Params) and method.params.model_fields_set for method in methods):
        raise InvalidRequest(
            "params of [bm25] are for --engine memory: through an engine its index's own similarity counts"
        )
    if not any(method.rescorer or method.strategy for method in methods):
        return
    if first_pass == "hybrid":
        raise InvalidRequest("[first-pass] hybrid is for --engine memory: take dense or bm25 through an engine")
    if min(window or documents, documents) > MAX_RESULT_WINDOW:
        raise InvalidRequest(
            f"[window] {window or 'all'} is {min(window or documents, documents)} documents, and an engine gives up to "
            f"{MAX_RESULT_WINDOW}: choose a smaller window, or --engine memory"
        )


@contextmanager
def temporary_index(
    settings: EngineSettings,
    collection: Collection,
    spec: IndexSpec,
    encoder: Encoder,
    progress: ReportStage = silent,
    *,
    graph: bool = False,
    fields: Sequence[str] = (),
) -> Iterator[SearchedIndex]:
    """Index a collection under a new name; the index is deleted at the end of the context."""
    name = f"es-ttc-evaluate-{uuid.uuid4().hex[:12]}"
    with InterruptibleRunner() as runner:
        engine = runner.run(connect(settings))
        try:
            report = partial(progress, "indexing documents")
            outcome = runner.run(index_collection(engine, name, collection, spec, encoder, report, fields))
            if graph:
                runner.run(
                    build_graph(engine, name, report=lambda so_far: progress(so_far.doing, so_far.done, so_far.total))
                )
            yield SearchedIndex(runner, engine, name, spec, len(collection.documents), outcome.truncated)
        finally:
            runner.run(_clean_up(engine, name))


@contextmanager
def existing_index(settings: EngineSettings, name: str) -> Iterator[SearchedIndex]:
    """Yield an index that is evaluated as it is, with the features that it has."""
    with InterruptibleRunner() as runner:
        engine = runner.run(connect(settings))
        try:
            indices = runner.run(Indices.behind(engine, name))
            spec, beside = indices.shared_spec(), any(location.side for location in indices.present)
            yield SearchedIndex(runner, engine, name, spec, runner.run(engine.count(name)), beside=beside)
        finally:
            runner.run(engine.close())


@contextmanager
def engine_searcher(
    settings: EngineSettings,
    index: SearchedIndex,
    collection: Collection,
    encoder: Encoder,
    queries: Sequence[Query],
    *,
    first_pass: FirstPassName,
    window: int | None,
    ranking_models: Path | None = None,
) -> Iterator[EngineSearcher]:
    """Start a gateway in front of an indexed collection and search through it."""
    connection = settings.model_dump()
    gateway = GatewaySettings(
        **connection, host="127.0.0.1", port=0, max_window=MAX_RESULT_WINDOW, ranking_models=ranking_models
    )
    with running_gateway(gateway, load=lambda _name, _folder: encoder) as url:
        client = index.runner.run(connect(EngineSettings(**{**connection, "engine": url})))
        try:
            yield EngineSearcher(index, client, collection, queries, first_pass=first_pass, window=window)
        finally:
            index.runner.run(client.close())


async def index_collection(
    engine: Engine,
    name: str,
    collection: Collection,
    spec: IndexSpec,
    encoder: Encoder,
    report: Callable[[int, int], None] = lambda *_: None,
    fields: Sequence[str] = (),
) -> IngestResult:
    """Create an index of one shard and write every document of a collection into it."""
    documents = collection.documents
    total = len(documents)
    await create_index(engine, name, spec, IndexOptions(shards=1, replicas=0))
    if fields:
        mapping = {"properties": {field: {"type": "double"} for field in fields}}
        await engine.request("PUT", f"/{name}/_mapping", body=mapping)
    rejected = DeadLetterList()
    outcome = await ingest(
        engine,
        name,
        Inputs(
            [
                Documents(
                    ({"_id": document.id, **document.source, **_numbers(document, fields)} for document in documents),
                    total,
                )
            ]
        ),
        encoder,
        dead_letters=rejected,
        options=IngestOptions(id_field="_id"),
        report=lambda so_far, _: report(so_far.settled, total),
    )
    if rejected.letters:
        first = rejected.letters[0]
        raise EngineError(
            f"{len(rejected.letters)} of {total} documents of [{collection.name}] were rejected, "
            f"[{first.id}] first: {first.reason}"
        )
    await engine.refresh(name)
    return outcome


def _numbers(document: Document, fields: Sequence[str]) -> dict[str, float]:
    return {field: document.numbers[field] for field in fields if field in document.numbers}


async def _clean_up(engine: Engine, index: str) -> None:
    try:
        await _stop_writing()
        await delete_graphs(engine, index)
        await delete_if_there(engine, index)
    finally:
        await engine.close()


async def _stop_writing() -> None:
    """Cancel the loop's other tasks: a bulk sent after the index was deleted would create it again."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
