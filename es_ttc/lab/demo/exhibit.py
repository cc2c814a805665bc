"""A collection of the demonstration in a real engine: filled, measured, taken away again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from es_ttc.common.interruption import InterruptibleRunner
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest import IngestResult
from es_ttc.index.mappings.spec import ROOT, IndexSpec
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.features import encode_queries
from es_ttc.lab.evaluation.methods import resolve
from es_ttc.lab.evaluation.metrics import NDCG_10
from es_ttc.lab.evaluation.plan import evaluate
from es_ttc.lab.evaluation.rankings import ReportStage, silent
from es_ttc.lab.evaluation.results import CollectionResult
from es_ttc.lab.evaluation.through_engine import EngineSearcher, SearchedIndex, index_collection

DEMO_PREFIX = "es-ttc-demo-"
METHODS = ("bm25", "dense", "hybrid", "maxsim", "spectral", "blend")
SHOWN_METHOD = "blend"  # the method whose queries are shown before and after
MAX_TOKENS = 512  # tokens kept of a document, so that the library is encoded in half a minute; a real index keeps 1,024
DEMO_WINDOW = 100
PAGE_SIZE = 10  # hits that are asked for, as a search page does: what is shown is nDCG@10, recall@10 and a page's time
WARM_UP = 8  # queries that are asked before any is measured


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A collection in its index."""

    collection: Collection
    index: str
    spec: IndexSpec
    outcome: IngestResult


def index_of(collection: Collection) -> str:
    """Return the name of a collection's index."""
    return DEMO_PREFIX + collection.name


async def fill_index(
    engine: Engine,
    name: str,
    collection: Collection,
    encoder: Encoder,
    report: Callable[[int, int], None] = lambda *_: None,
) -> Exhibit:
    """Index a collection; what an earlier run has left under the same name is replaced."""
    spec = IndexSpec(encoder.identity, text_fields=collection.text_fields, max_tokens=MAX_TOKENS)
    await _make_room(engine, name)
    outcome = await index_collection(engine, name, collection, spec, encoder, report)
    return Exhibit(collection, name, spec, outcome)


async def _make_room(engine: Engine, name: str) -> None:
    if not await engine.exists(name):
        return
    (mapping,) = (await engine.mapping(name)).values()
    if ROOT not in mapping.get("_meta", {}):
        raise InvalidRequest(f"index [{name}] exists and is not the demonstration's: rename it or take another engine")
    await engine.delete_index(name)


def measure_methods(
    runner: InterruptibleRunner, client: Engine, exhibit: Exhibit, encoder: Encoder, progress: ReportStage = silent
) -> CollectionResult:
    """Run every method on every query through the gateway, and compare them; rescorers rescore BM25's best 100."""
    methods = resolve(METHODS)
    documents = len(exhibit.collection.documents)
    index = SearchedIndex(runner, client, exhibit.index, exhibit.spec, documents)
    queries = encode_queries(list(exhibit.collection.queries.values()), encoder, tokens=False)

    def searcher(collection: Collection) -> EngineSearcher:
        some = queries[: len(collection.queries)]
        return EngineSearcher(index, client, collection, some, first_pass="bm25", window=DEMO_WINDOW, depth=PAGE_SIZE)

    # A fresh engine's first searches are slower than all later ones: they are not counted.
    first = searcher(replace(exhibit.collection, queries=dict(islice(exhibit.collection.queries.items(), WARM_UP))))
    for method in methods:
        first.rank(method)
    return evaluate(
        exhibit.collection, methods, searcher(exhibit.collection), baseline=methods[0].name, progress=progress
    )


def added_ms(result: CollectionResult) -> dict[str, float]:
    """Return by method what a query takes beyond the first method, in ms: the median over the queries."""
    first = result.methods[METHODS[0]].seconds
    return {name: 1000 * float(np.median(method.seconds - first)) for name, method in result.methods.items()}


def gains(result: CollectionResult) -> dict[str, float]:
    """Return by query what the shown method gains over the better of the engine's own two rankings."""
    own = result.methods[SHOWN_METHOD].scores.values[NDCG_10]
    engine = [result.methods[name].scores.values[NDCG_10] for name in ("bm25", "dense")]
    queries = result.methods[SHOWN_METHOD].scores.queries
    return {query: float(own[i] - max(one[i] for one in engine)) for i, query in enumerate(queries)}
