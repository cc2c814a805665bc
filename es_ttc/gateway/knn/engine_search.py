"""The means to search that a retriever gets in the gateway: the engine's own kNN, in the caller's name.

Every search carries the caller's filter and goes through the caller's own door (an alias's filter and rights hold);
features are read only of documents that such a search has returned.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np

from es_ttc.engine.protocol import Product
from es_ttc.errors import EncoderMismatch, EngineError
from es_ttc.gateway.features import DocumentKey, FeatureStore, Stored, brought
from es_ttc.gateway.knn.clauses import Clause, all_of
from es_ttc.gateway.pool import BoundedPool
from es_ttc.gateway.scoring import columns
from es_ttc.gateway.upstream import Caller
from es_ttc.mappings.fields import FEATURES
from es_ttc.mappings.queries import MOST_CANDIDATES
from es_ttc.mappings.spec import ENCODER, HASH, SPAN_VECTOR, SPANS, TOKEN_VECTOR, TOKENS, VECTOR
from es_ttc.rescorers.base import Feature, Window
from es_ttc.retrievers.base import Documents, Known, Neighbours, Vectors
from es_ttc.vectors.tokens import Float32

A = ParamSpec("A")
T = TypeVar("T")

Body = dict[str, Any]
Ask = Callable[[Sequence[Body]], Awaitable[Sequence[Mapping[str, Any]]]]
"""Answers `_search` bodies, in one round trip."""

_PATHS: Mapping[Vectors, tuple[str, str | None]] = {
    Vectors.POOLED: (VECTOR, None),
    Vectors.SPANS: (SPAN_VECTOR, SPANS),
    Vectors.TOKENS: (TOKEN_VECTOR, TOKENS),
}
"""For each kind of vectors their field, and the nested object that it lies in."""
FIELDS: Mapping[Vectors, str] = {among: field for among, (field, _) in _PATHS.items()}

_EXACT: Mapping[Product, Callable[[str, list[float]], Body]] = {
    "elasticsearch": lambda field, vector: {
        "source": f"(1.0 + cosineSimilarity(params.vector, '{field}')) / 2.0",
        "params": {"vector": vector},
    },
    "opensearch": lambda field, vector: {
        "lang": "knn",
        "source": "knn_score",
        "params": {"field": field, "query_value": vector, "space_type": "cosinesimil"},
    },
}


@dataclass(frozen=True, slots=True)
class Frame:
    """What belongs to every search of a request, whatever it looks for.

    Attributes:
        product: The engine's.
        caller: In whose name documents are read.
        encoder: Identity of the encoder of the searched vectors.
        shared: Parts of the caller's own body that hold for his filter (a point in time, runtime fields).
        end: `time.perf_counter` when the time for retrieving is over.
    """

    product: Product
    caller: Caller
    encoder: str
    shared: Mapping[str, Any]
    end: float


class EngineSearch:
    """Finds documents by the engine's kNN; see :class:`es_ttc.retrievers.base.Search`.

    Args:
        clause: The caller's clause, for its filter and what else every search is told.
        frame: What belongs to every search of the request.
        ask: Sends searches.
        features: The documents' features.
        pool: Where computations run.
    """

    def __init__(self, clause: Clause, frame: Frame, ask: Ask, features: FeatureStore, pool: BoundedPool) -> None:
        self.ids: list[tuple[str, str]] = []
        self.fields: dict[int, tuple[str, ...]] = {}
        self.searches = 0
        self.feature_ms = 0.0
        self._clause = clause
        self._frame = frame
        self._ask = ask
        self._features = features
        self._pool = pool
        self._keys: list[DocumentKey] = []
        self._brought: dict[int, Stored] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._dims = 0

    @property
    def seconds_left(self) -> float:
        """What is left of the time for retrieving."""
        return max(0.0, self._frame.end - time.perf_counter())

    async def nearest(
        self,
        vectors: Float32,
        k: int,
        *,
        among: Vectors = Vectors.POOLED,
        num_candidates: int | None = None,
        exact: bool = False,
        features: frozenset[Feature] = frozenset(),
    ) -> list[Neighbours]:
        """Find the documents nearest to each of some vectors; see :class:`es_ttc.retrievers.base.Search`."""
        k = min(k, MOST_CANDIDATES)
        asked = max(num_candidates or 0, self._clause.num_candidates or 0)
        candidates = min(MOST_CANDIDATES, max(k, asked)) if asked else None
        bodies = [
            search_body(
                self._clause, self._frame, vector, k, among=among, num_candidates=candidates, exact=exact,
                stored=[FEATURES[feature].name for feature in sorted(features)],
            )
            for vector in vectors
        ]  # fmt: skip
        self.searches += len(bodies)
        self._dims = vectors.shape[1]
        answers = await self._ask(bodies)
        found = [self._neighbours(answer) for answer in answers]
        if features:
            for answer, neighbours in zip(answers, found, strict=True):
                for number, hit in zip(neighbours.documents.tolist(), answer["hits"]["hits"], strict=True):
                    self._brought[number] = brought(self._keys[number], hit, features)
        return found

    async def window(
        self, documents: Documents, needs: frozenset[Feature], wants: frozenset[Feature] = frozenset()
    ) -> Known:
        """Return stored features of documents that this search has found."""
        began = time.perf_counter()
        found = [self._brought.get(document, {}) for document in documents.tolist()]
        if not all(needs | wants <= stored.keys() for stored in found):
            keys = [self._keys[document] for document in documents]
            found = (await self._features.window(keys, needs | wants, self._frame.caller)).documents
        self.feature_ms += (time.perf_counter() - began) * 1000
        places = [place for place, stored in enumerate(found) if needs <= stored.keys()]
        known = documents[places]
        stored = [found[place] for place in places]
        for document, features in zip(known.tolist(), stored, strict=True):
            if Feature.OFFSETS in features:
                self.fields[document] = features[Feature.OFFSETS][1]
        nothing = np.zeros(len(known), np.float32)
        if not stored:
            return Known(known, Window([], nothing, np.empty((0, self._dims), np.float32), tokens=()))
        window = Window([self.ids[one][1] for one in known], nothing, **columns(stored, needs | wants))
        return Known(known, window)

    async def compute(self, function: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        """Call a function off the event loop."""
        return await self._pool.run(function, *args, **kwargs)

    def _neighbours(self, answer: Mapping[str, Any]) -> Neighbours:
        hits = answer["hits"]["hits"]
        cosines = np.array([2 * hit["_score"] - 1 for hit in hits], np.float32)
        return Neighbours(np.array([self._number(hit) for hit in hits], np.intp), np.clip(cosines, -1, 1))

    def _number(self, hit: Mapping[str, Any]) -> int:
        """Return a document's number; a new document gets the next one."""
        identity = (str(hit["_index"]), str(hit["_id"]))
        number = self._numbers.get(identity)
        if number is not None:
            return number
        fields = hit.get("fields", {})
        encoder, content = fields.get(ENCODER, [""])[0], fields.get(HASH, [""])[0]
        if encoder != self._frame.encoder:
            raise EncoderMismatch(
                f"index [{identity[0]}] holds vectors of [{encoder}] beside those of [{self._frame.encoder}]: search "
                "one of them at a time, or ingest one of them again"
            )
        number = self._numbers[identity] = len(self.ids)
        self.ids.append(identity)
        self._keys.append(DocumentKey(identity[0], encoder, content))
        return number


def search_body(
    clause: Clause,
    frame: Frame,
    vector: Float32,
    k: int,
    *,
    among: Vectors = Vectors.POOLED,
    num_candidates: int | None = None,
    exact: bool = False,
    stored: Sequence[str] = (),
) -> Body:
    """Return one kNN search as a `_search` body.

    Args:
        clause: The caller's clause.
        frame: What belongs to every search of the request.
        vector: ``(d,)``, not zero.
        k: Documents wanted, at most 10,000.
        among: The vectors that are searched.
        num_candidates: At least k; None for the engine's own choice.
        exact: Compare every vector.
        stored: Stored fields that come with the hits.
    """
    field, nested = _PATHS[among]
    values = vector.tolist()
    if exact:
        found = _exactly(field, nested, values, clause.filters, frame.product)
    elif frame.product == "elasticsearch":
        found = _elasticsearchs(clause, field, values, k, num_candidates)
    else:
        found = _opensearchs(clause, field, nested, values, k, num_candidates)
    fields = {"stored_fields": [*stored]} if stored else {}
    return {
        **frame.shared,
        **found,
        "size": k,
        "track_total_hits": False,
        "_source": False,
        "docvalue_fields": [HASH, ENCODER],
        **fields,
    }


def require_whole(answer: Mapping[str, Any]) -> None:
    """Refuse an answer to a search of ours that is an error, or comes from a part of the documents only.

    Raises:
        EngineError: It is.
    """
    if "error" in answer:
        raise refusal(answer.get("status"), answer)
    shards = answer.get("_shards", {})
    if answer.get("timed_out") or shards.get("failed"):
        raise EngineError(f"a kNN search was answered from a part of the documents only: {shards.get('failed')} shards")


def refusal(status: int | None, answer: Any) -> EngineError:
    """Return the error for an engine's refusal, with its reason where it gives one."""
    error = answer.get("error") if isinstance(answer, dict) else None
    cause = next(iter(error.get("root_cause") or ()), error) if isinstance(error, dict) else {"reason": error}
    why = f"it answered {status}" if cause.get("reason") is None else f"{cause['reason']}"
    return EngineError(f"the engine refused a kNN search: {why}", upstream_status=status, upstream=answer)


def _elasticsearchs(clause: Clause, field: str, values: list[float], k: int, num_candidates: int | None) -> Body:
    knn: Body = {"field": field, "query_vector": values, "k": k, **clause.of_each_search("elasticsearch")}
    if num_candidates is not None:
        knn["num_candidates"] = num_candidates
    if clause.filters:
        knn["filter"] = clause.filters
    return {"knn": knn}


def _opensearchs(
    clause: Clause, field: str, nested: str | None, values: list[float], k: int, num_candidates: int | None
) -> Body:
    # k is what each shard's index considers; `size` keeps the best of all.
    knn: Body = {"vector": values, "k": max(k, num_candidates or k), **clause.of_each_search("opensearch")}
    if clause.filters:
        knn["filter"] = all_of(clause.filters)
    query: Body = {"knn": {field: knn}}
    return {"query": query if nested is None else {"nested": {"path": nested, "score_mode": "max", "query": query}}}


def _exactly(field: str, nested: str | None, values: list[float], filters: Sequence[Any], product: Product) -> Body:
    scored: Body = {"script_score": {"query": {"exists": {"field": field}}, "script": _EXACT[product](field, values)}}
    if nested is not None:
        scored = {"nested": {"path": nested, "score_mode": "max", "query": scored}}
    return {"query": {"bool": {"must": [scored], "filter": [*filters]}}}
