"""Tasks for programs: the choice of their queries and documents, and the features of an index as arrays."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.base import Encoder
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.demo import limit_style, stdlib
from es_ttc.lab.discovery.records import DiscoveryPlan, TaskPlan
from es_ttc.lab.evaluation.datasets import Collection, load_collection, only, splits
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.metrics import NDCG_10, score_by
from es_ttc.lab.evaluation.rankings import ReportStage, silent, top
from es_ttc.rescorers.programs.encoding import encode_fn
from es_ttc.sandbox.process import ProgramInputs, SharedMoments
from es_ttc.sandbox.shared import Shared, SharedChunks, SharedTexts
from es_ttc.vectors.chunks import GRANULARITIES, Granularity
from es_ttc.vectors.encode import EncodeFn
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32

_DEPTH = 10


@dataclass(frozen=True)
class DiscoveryTask:
    """One collection, prepared for programs; q queries, n documents."""

    name: str
    split: str
    query_texts: Sequence[str]
    document_ids: Sequence[str]
    qrels: Mapping[str, Mapping[str, int]]  # relevance judgements by query id, in the order of the queries
    queries: Float32  # (q, d) float32 unit rows
    documents: Float32  # (n, d) float32 unit rows
    document_texts: SharedTexts
    chunks: Mapping[Granularity, SharedChunks]
    chunk_texts: Mapping[Granularity, SharedTexts]
    topics: Shared  # (n, d): the documents' openings
    encode: EncodeFn
    # (n, d): the documents encoded as queries; None for an encoder that does not distinguish roles
    reversed: Shared | None = None
    # (m, d) other queries as a sample of an index's queries (`ctx.calibration`); None: the queries themselves, as in
    # the paper
    sample: Float32 | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of queries and documents."""
        return self.queries.shape[0], self.documents.shape[0]

    @cached_property
    def inputs(self) -> ProgramInputs:
        """The inputs of programs, in shared memory."""
        moments = None if self.sample is None else Moments.of(self.sample)
        return ProgramInputs(
            self.query_texts,
            Shared.of(self.queries),
            Shared.of(self.documents),
            (*self.size, self.queries.shape[1]),
            None
            if moments is None
            else SharedMoments(Shared.of(moments.mean), Shared.of(moments.factor), len(moments.factor), moments.size),
        )

    @cached_property
    def baseline(self) -> NDArray[np.float64]:
        """The metric of each query under P0, the plain cosine, ``(q,)``."""
        return self.measure(self.queries @ self.documents.T)

    def measure(self, scores: Float32) -> NDArray[np.float64]:
        """Return the metric of each query, ``(q,)``, of finite scores, ``(q, n)``; ties in the documents' order."""
        rankings = {
            query: [self.document_ids[place] for place in top(row, _DEPTH).documents]
            for query, row in zip(self.qrels, scores, strict=True)
        }
        return score_by(NDCG_10, self.qrels, rankings)


def spec_of_programs(collection: Collection, encoder: Encoder) -> IndexSpec:
    """Return the spec of an index that stores what programs read, and nothing else."""
    return IndexSpec(
        encoder.identity,
        text_fields=collection.text_fields,
        tokens="none",
        codec="float16",
        chunks=True,
        reversed=encoder.distinguishes_roles,
    )


def task_of(collection: Collection, encoder: Encoder, progress: ReportStage = silent) -> DiscoveryTask:
    """Encode a collection as ingest does; documents without text are left out."""
    spec = spec_of_programs(collection, encoder)
    features = encode_corpus(collection.documents, spec, encoder, progress)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=False, progress=progress)
    present = np.flatnonzero(features.present).tolist()
    texts = [compose(collection.documents[place].source, ("title", "text"))[0] for place in present]
    return DiscoveryTask(
        collection.name,
        collection.split,
        list(collection.queries.values()),
        [features.ids[place] for place in present],
        collection.qrels,
        np.stack([query.vectors[0] for query in queries]).astype(np.float32),
        features.pooled[present].astype(np.float32),
        SharedTexts.of(texts),
        {name: _pieces(features, present, name) for name in GRANULARITIES},
        {name: _chunk_texts(features, present, name) for name in GRANULARITIES},
        Shared.of(np.concatenate([dequantise(features.chunks[place].topic) for place in present])),
        encode_fn(encoder),
        None if features.reversed is None else Shared.of(features.reversed[present]),
    )


def _pieces(features: CorpusFeatures, present: Sequence[int], name: Granularity) -> SharedChunks:
    chunks = [features.chunks[place] for place in present]
    vectors = np.concatenate([dequantise(own.vectors[name]) for own in chunks])
    starts = np.concatenate(([0], np.cumsum([len(own.vectors[name]) for own in chunks], dtype=np.int64)))
    return SharedChunks(Shared.of(vectors), Shared.of(starts), len(vectors))


def _chunk_texts(features: CorpusFeatures, present: Sequence[int], name: Granularity) -> SharedTexts:
    chunks = [features.chunks[place] for place in present]
    return SharedTexts.of([own.text[start:end] for own in chunks for start, end in own.spans[name].tolist()])


_ELSEWHERE = 1


def _limit_style(held: bool) -> Collection:
    return limit_style.generate(seed=_ELSEWHERE) if held else limit_style.generate()


def _stdlib(held: bool) -> Collection:  # noqa: ARG001 - one collection, whose questions are parted
    return stdlib.generate()


GENERATED: Mapping[str, Callable[[bool], Collection]] = {"limit-style": _limit_style, "stdlib": _stdlib}
"""Tasks that are generated on this machine, with an argument: whether held-out queries are requested."""


def plan_task(
    folder: Path, split: str | None, held_out: str | None, queries: int, documents: int, seed: int
) -> TaskPlan:
    """Choose queries and documents of a BEIR folder: those of `split`, and the held-out ones of `held_out`.

    A collection with one split is halved at random. All judged documents of the queries are included.
    """
    there = splits(folder) if (folder / "qrels").is_dir() else []
    seen = split or ("train" if "train" in there else "test")
    unseen = held_out or "test"
    collection, other = load_collection(folder, seen), load_collection(folder, unseen)
    if seen != unseen and not other.queries.keys() - collection.queries.keys():
        raise ConfigurationError(f"[{folder}]: split [{unseen}] has no query that [{seen}] lacks: name another")
    return _plan(collection, other, queries, documents, seed, folder=str(folder.resolve()), halved=seen == unseen)


def plan_generated(name: str, queries: int, documents: int, seed: int) -> TaskPlan:
    """Choose queries and documents of a generated task."""
    if name not in GENERATED:
        raise InvalidRequest(f"no generated task [{name}]: there are {', '.join(GENERATED)}")
    collection, other = GENERATED[name](False), GENERATED[name](True)
    planned = _plan(collection, other, queries, documents, seed, folder=None, halved=other == collection)
    return planned.model_copy(update={"name": name})


def load_tasks(
    plan: DiscoveryPlan, encoder: Encoder, *, held: bool = False, progress: ReportStage = silent
) -> list[DiscoveryTask]:
    """Encode the tasks of a plan; on request, the held-out queries with their documents."""
    if encoder.identity.key != plan.identity:
        raise ConfigurationError(
            f"the search began with encoder [{plan.identity}], and this is [{encoder.identity.key}]: name that one"
        )
    return [task_of(collection, encoder, progress) for collection in collections(plan, held=held)]


def collections(plan: DiscoveryPlan, *, held: bool) -> Iterator[Collection]:
    """Yield the collections of a plan, restricted to its queries and documents."""
    for task in plan.tasks:
        whole = _load(task, held=held)
        queries = frozenset(task.held_queries if held else task.queries)
        documents = frozenset(task.held_documents if held else task.documents)
        kept = tuple(document for document in whole.documents if document.id in documents)
        if len(kept) < len(documents) or len(queries - whole.queries.keys()):
            raise ConfigurationError(f"task [{task.name}] has other queries or documents than when the search began")
        yield replace(only(whole, queries), name=task.name, documents=kept)


def _load(task: TaskPlan, *, held: bool) -> Collection:
    if task.folder is None:
        return GENERATED[task.name](held)
    return load_collection(Path(task.folder), task.held_out if held else task.split)


def _plan(
    collection: Collection,
    other: Collection,
    queries: int,
    documents: int,
    seed: int,
    *,
    folder: str | None,
    halved: bool,
) -> TaskPlan:
    """Choose queries of a collection for the search, and held-out ones of another; both from halves of the same."""
    mine = list(collection.queries)
    if halved:
        mine, theirs = _halves(mine, seed)
    else:
        theirs = [query for query in other.queries if folder is None or query not in collection.queries]
    chosen = _queries(collection, mine, queries, documents, seed)
    held = _queries(other, theirs, queries, documents, seed)
    return TaskPlan(
        name=collection.name,
        folder=folder,
        split=collection.split,
        held_out=other.split,
        queries=chosen,
        held_queries=held,
        documents=_documents(collection, chosen, documents, seed),
        held_documents=_documents(other, held, documents, seed),
    )


def _queries(collection: Collection, ids: Sequence[str], size: int, documents: int, seed: int) -> tuple[str, ...]:
    """Return random queries whose judged documents fit into the limit."""
    kept: set[str] = set()
    judged: set[str] = set()
    for query in _shuffled(ids, seed):
        more = judged | collection.qrels[query].keys()
        if len(kept) < size and len(more) <= documents:
            kept.add(query)
            judged = more
    if not kept:
        raise InvalidRequest(f"no query of [{collection.name}] has {documents} or fewer judged documents")
    return tuple(query for query in ids if query in kept)


def _documents(collection: Collection, queries: Sequence[str], size: int, seed: int) -> tuple[str, ...]:
    known = [document.id for document in collection.documents if document.text or document.title]
    judged = {document for query in queries for document in collection.qrels[query]}
    others = _sample([one for one in known if one not in judged], max(0, size - len(judged)), seed)
    kept = judged | set(others)
    return tuple(one for one in known if one in kept)


def _sample(ids: Sequence[str], size: int, seed: int) -> tuple[str, ...]:
    if size >= len(ids):
        return tuple(ids)
    kept = set(_shuffled(ids, seed)[:size])
    return tuple(identifier for identifier in ids if identifier in kept)


def _shuffled(ids: Sequence[str], seed: int) -> list[str]:
    return random.Random(seed).sample(sorted(ids), len(ids))  # noqa: S311 - to be repeated, not a secret


def _halves(ids: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    first = set(_sample(ids, len(ids) // 2, seed))
    return [identifier for identifier in ids if identifier in first], [
        identifier for identifier in ids if identifier not in first
    ]
