"""The plan of an evaluation, its run on one collection, and the comparison of its methods with a baseline."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from es_ttc.encoders.base import Encoder
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.encoder import check_encoder
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid, TokenStorage
from es_ttc.lab.evaluation.bootstrap import RESAMPLES, TRUSTED_QUERIES, compare, interval, resampled_means
from es_ttc.lab.evaluation.datasets import Collection, Document, field_values
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import EvaluatedMethod, FirstPassName, retrieval
from es_ttc.lab.evaluation.metrics import QueryScores, score
from es_ttc.lab.evaluation.provenance import product_and_version
from es_ttc.lab.evaluation.rankings import ReportStage, Run, Searcher, silent
from es_ttc.lab.evaluation.results import CollectionResult, MethodResult
from es_ttc.rescorers.base import Feature
from es_ttc.retrievers.base import Vectors
from es_ttc.settings import EngineSettings
from es_ttc.vectors.codecs import SkipTokens, StoredCodec

if TYPE_CHECKING:
    from es_ttc.lab.evaluation.through_engine import SearchedIndex

MIN_UNJUDGED = 0.1  # difference in the share of unjudged documents from which a warning is given
SHOWN_DOCUMENTS = 3  # documents of each ranking that the report shows

_LABEL = 80


def evaluate(
    collection: Collection,
    methods: Sequence[EvaluatedMethod],
    searcher: Searcher,
    *,
    k: int = 10,
    baseline: str | None = None,
    resamples: int = RESAMPLES,
    progress: ReportStage = silent,
) -> CollectionResult:
    """Run methods on one collection and compare them."""
    reference = choose_baseline(methods, baseline)
    runs = {method.name: searcher.rank(method, progress) for method in methods}
    vectors = searcher.vectors
    scores = {
        name: score(collection.qrels, run.rankings, k=k, aspects=collection.aspects, vectors=vectors)
        for name, run in runs.items()
    }
    firsts = {
        name: {query: ranking[:SHOWN_DOCUMENTS] for query, ranking in run.rankings.items()}
        for name, run in runs.items()
    }
    shown = {document for rankings in firsts.values() for ranking in rankings.values() for document in ranking}
    return CollectionResult(
        name=collection.name,
        split=collection.split,
        documents=searcher.documents,
        judgements=collection.judgements,
        relevant=collection.relevant,
        warnings=(*collection.warnings, *_few(collection), *_unjudged(collection, scores, reference, k)),
        baseline=reference,
        methods=_compared(methods, runs, scores, firsts, reference, resamples),
        texts=dict(collection.queries),
        labels={document.id: _label(document) for document in collection.documents if document.id in shown},
        right={
            query: frozenset(document for document, grade in judged.items() if grade > 0)
            for query, judged in collection.qrels.items()
        },
    )


def _few(collection: Collection) -> Iterator[str]:
    if len(collection.queries) < TRUSTED_QUERIES:
        yield (
            f"intervals of {len(collection.queries)} queries are too narrow, trust them from {TRUSTED_QUERIES} on; "
            "p is of the exact sign-flip test"
        )


def _unjudged(collection: Collection, scores: Mapping[str, QueryScores], baseline: str, k: int) -> Iterator[str]:
    """Return a warning for each method with many more unjudged documents than the baseline.

    Where all judged documents are relevant, unjudged ones are meant to count as not relevant: no warning.
    """
    if collection.judgements == collection.relevant:
        return
    metric = f"unjudged@{k}"
    least = scores[baseline].mean(metric)
    for name, one in scores.items():
        share = one.mean(metric)
        if share - least >= MIN_UNJUDGED:
            yield (
                f"{share:.0%} of the first {k} documents of {name} have no judgement, {least:.0%} of those of "
                f"{baseline}: they count as not relevant, so its figures may be too low"
            )


def _label(document: Document) -> str:
    return document.title or textwrap.shorten(document.text, _LABEL, placeholder="\N{HORIZONTAL ELLIPSIS}")


def choose_baseline(methods: Sequence[EvaluatedMethod], requested: str | None = None) -> str:
    """Return the name of the baseline: the requested one, else dense, else the first method."""
    names = [method.name for method in methods]
    if requested is not None and requested not in names:
        raise InvalidRequest(f"baseline [{requested}] is not among the methods: {', '.join(names)}")
    return requested or ("dense" if "dense" in names else names[0])


def _compared(
    methods: Sequence[EvaluatedMethod],
    runs: dict[str, Run],
    scores: dict[str, QueryScores],
    firsts: Mapping[str, Mapping[str, Sequence[str]]],
    baseline: str,
    resamples: int,
) -> dict[str, MethodResult]:
    """Return the results of all methods, with intervals and comparisons from the same draws of the bootstrap."""
    series = [(name, metric) for name in scores for metric in scores[name].values]
    values = np.stack([scores[name].values[metric] for name, metric in series])
    means = dict(zip(series, resampled_means(values, resamples=resamples).T, strict=True))
    results = {}
    for method in methods:
        own = scores[method.name].values
        versus = {
            metric: compare(
                own[metric],
                scores[baseline].values[metric],
                means[method.name, metric],
                means[baseline, metric],
            )
            for metric in (own if method.name != baseline else ())
        }
        results[method.name] = MethodResult(
            name=method.name,
            params=method.params.model_dump(mode="json"),
            scores=scores[method.name],
            intervals={metric: interval(means[method.name, metric]) for metric in own},
            versus=versus,
            seconds=runs[method.name].seconds,
            firsts=firsts[method.name],
        )
    return results


SEARCHED_SPANS = SpanGrid(scale=10, stride=5)  # the grid of searched spans: ten tokens wide, one every five tokens

_OF_TOKENS = frozenset({Feature.TOKENS, Feature.NORMS})


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """The plan of an evaluation."""

    methods: tuple[EvaluatedMethod, ...]
    k: int = 10
    baseline: str | None = None
    first_pass: FirstPassName = "dense"
    window: int | None = 100
    codec: StoredCodec = "float16"
    skip_tokens: SkipTokens = "none"
    max_tokens: int = 1024
    engine: EngineSettings | None = None
    index: str | None = None
    ranking_models: Path | None = None

    def __post_init__(self) -> None:
        choose_baseline(self.methods, self.baseline)

    @property
    def features(self) -> frozenset[Feature]:
        """The features of documents and queries that the methods and the first pass read."""
        needs = reduce(frozenset.__or__, (method.needs for method in self.methods), frozenset[Feature]())
        return needs | {Feature.POOLED} if any(method.rescorer for method in self.methods) else needs

    @property
    def fields(self) -> tuple[str, ...]:
        """The numeric fields of documents that the methods read."""
        return tuple(dict.fromkeys(name for method in self.methods for name in method.fields))

    @property
    def needs_encoder(self) -> bool:
        """Whether documents and queries are encoded."""
        return bool(self.features) or self.engine is not None

    def spec(self, collection: Collection, encoder: Encoder) -> IndexSpec:
        """Return the spec of an index of the collection for these methods."""
        return IndexSpec(
            encoder.identity,
            text_fields=collection.text_fields,
            tokens=self._token_storage,
            codec=self.codec,
            skip_tokens=self.skip_tokens,
            max_tokens=self.max_tokens,
            chunks=Feature.CHUNKS in self.features,
            reversed=Feature.REVERSED in self.features and encoder.distinguishes_roles,
            spans=(SEARCHED_SPANS,) if Vectors.SPANS in self._searches else (),
        )

    @property
    def _searches(self) -> frozenset[Vectors]:
        return reduce(frozenset.__or__, (method.searches for method in self.methods), frozenset[Vectors]())

    @property
    def _token_storage(self) -> TokenStorage:
        if Vectors.TOKENS in self._searches and self.engine is not None:
            return "nested"
        return "packed" if self.features & _OF_TOKENS or Vectors.TOKENS in self._searches else "none"

    def settings(self) -> dict[str, Any]:
        """Return the settings for results and reports."""
        return {
            **({} if self.index is None else {"index": self.index}),
            "window": "all" if self.window is None else self.window,
            "first_pass": self.first_pass,
            "tokens": self.codec,
            **({} if self.skip_tokens == "none" else {"skip_tokens": self.skip_tokens}),
            "max_tokens": self.max_tokens,
        }


def run_plan(
    plan: EvaluationPlan, collection: Collection, encoder: Encoder | None = None, progress: ReportStage = silent
) -> tuple[CollectionResult, str]:
    """Evaluate one collection; return the result, and where it was made: in memory, or the engine's version."""
    with open_searcher(plan, collection, encoder, progress) as (searcher, where, truncated):
        if truncated:
            most = plan.max_tokens if encoder is None else plan.spec(collection, encoder).tokens_read
            warning = f"{truncated} documents have more than {most} tokens: the rest of them is not scored"
            collection = replace(collection, warnings=(*collection.warnings, warning))
        result = evaluate(collection, plan.methods, searcher, k=plan.k, baseline=plan.baseline, progress=progress)
    return result, where


def require_no_engine(methods: Sequence[EvaluatedMethod]) -> None:
    """Raise an error for methods that only an engine can run."""
    for method in methods:
        if method.rewriter is not None:
            raise InvalidRequest(f"[{method.name}] makes queries for an engine: name one with --engine URL")


@contextmanager
def open_searcher(
    plan: EvaluationPlan, collection: Collection, encoder: Encoder | None, progress: ReportStage
) -> Iterator[tuple[Searcher, str, int]]:
    """Yield the searcher, where it searches, and the number of truncated documents; see :func:`run_plan`."""
    if plan.engine is not None:
        with _through_engine(plan, plan.engine, collection, encoder, progress) as (searcher, index):
            yield searcher, product_and_version(index.runner.run(index.engine.capabilities())), index.truncated
        return
    if plan.index is not None:
        raise ConfigurationError(f"index [{plan.index}] is in an engine: give it")
    require_no_engine(plan.methods)
    for name in plan.fields:
        field_values(collection, name)
    texts = [compose(document.source, ("title", "text"))[0] for document in collection.documents]
    known = retrieval(plan.methods)
    if not plan.needs_encoder:
        yield MemorySearcher(collection, texts, known, window=plan.window), "memory", 0
        return
    needs_tokens = Feature.QUERY_TOKENS in plan.features
    encoder = _required(encoder)
    features = encode_corpus(collection.documents, plan.spec(collection, encoder), encoder, progress)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=needs_tokens, progress=progress)
    memory = MemorySearcher(collection, texts, known, features, queries, first_pass=plan.first_pass, window=plan.window)
    yield memory, "memory", features.truncated


@contextmanager
def _through_engine(
    plan: EvaluationPlan,
    settings: EngineSettings,
    collection: Collection,
    encoder: Encoder | None,
    progress: ReportStage,
) -> Iterator[tuple[Searcher, "SearchedIndex"]]:
    """Yield a searcher of the plan's index, or of a temporary one with the collection."""
    from es_ttc.lab.evaluation.through_engine import engine_searcher, existing_index, require_possible, temporary_index

    encoder = _required(encoder)
    if plan.index is not None:
        opening = existing_index(settings, plan.index)
    else:
        require_possible(plan.methods, plan.first_pass, plan.window, len(collection.documents))
        for name in plan.fields:
            field_values(collection, name)
        graph = any(method.strategy is not None and method.strategy.walks for method in plan.methods)
        spec = plan.spec(collection, encoder)
        opening = temporary_index(settings, collection, spec, encoder, progress, graph=graph, fields=plan.fields)
    with opening as index:
        check_encoder(index.name, index.spec, encoder)
        require_possible(plan.methods, plan.first_pass, plan.window, index.documents)
        queries = encode_queries(list(collection.queries.values()), encoder, tokens=False, progress=progress)
        with engine_searcher(
            settings,
            index,
            collection,
            encoder,
            queries,
            first_pass=plan.first_pass,
            window=plan.window,
            ranking_models=plan.ranking_models,
        ) as searcher:
            yield searcher, index


def _required(encoder: Encoder | None) -> Encoder:
    if encoder is None:
        raise ConfigurationError("these methods need an encoder, and none is given")
    return encoder
