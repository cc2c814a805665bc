"""Methods by name, with their parameters: first passes, rescorers, strategies, rewriters, retrievers as ``knn:NAME``.

A name such as ``nnn`` may be that of a rescorer and of a retriever. The prefix, the hook of retrievers, distinguishes
them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Literal

from pydantic import Field

from es_ttc.common import entry_points
from es_ttc.common.validation import did_you_mean
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation import bm25
from es_ttc.reranking.strategies.methods import BY_THEMSELVES, STRATEGIES, Strategy, StrategyParams, with_defaults
from es_ttc.rescorers.base import Feature, FieldRescorer, Params, PartialRescorer, Rescorer
from es_ttc.rescorers.dense import DenseParams
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.registry import USUAL, load, parse_params
from es_ttc.rescorers.registry import names as rescorers
from es_ttc.retrievers import registry as retrievers
from es_ttc.retrievers.base import Retriever, Vectors
from es_ttc.rewriters import registry as rewriters
from es_ttc.rewriters.base import Rewriter

FirstPassName = Literal["dense", "bm25", "hybrid"]


class Bm25Params(Params):
    """BM25's two constants; in memory only (an index has its own)."""

    GRID: ClassVar[Mapping[str, Sequence[float]]] = {"k1": (0.6, 0.9, 1.2, 1.5, 2.0), "b": (0.0, 0.25, 0.4, 0.75, 0.9)}

    k1: float = Field(bm25.K1, ge=0, description="Saturation of term frequency.")
    b: float = Field(bm25.B, ge=0, le=1, description="Weight of document length.")


class FusionParams(Params):
    """Reciprocal rank fusion of bm25 and dense."""

    k: int = Field(60, ge=0, description="Constant added to every rank; 0 for plain reciprocal ranks.")


RETRIEVAL: Mapping[str, type[Params]] = {"bm25": Bm25Params, "dense": DenseParams, "hybrid": FusionParams}
"""Methods that find documents by one search; rescorers reorder the window that one of these has found."""

KNN = "knn:"  # prefix of a retriever's name

GROUPS: Mapping[str, tuple[str, ...]] = {"programs": tuple(CATALOGUE)}  # names of groups of methods


@dataclass(frozen=True, slots=True)
class EvaluatedMethod:
    """One method with its parameters; a method is of one kind, so at most one of the last four is set."""

    name: str
    params: Params
    rescorer: Rescorer[Any] | None = None
    retriever: Retriever[Any] | None = None
    rewriter: Rewriter[Any] | None = None
    strategy: Strategy | None = None

    @property
    def searches(self) -> frozenset[Vectors]:
        """The vectors that a retriever searches."""
        return frozenset() if self.retriever is None else self.retriever.searches(self.params)

    @property
    def joins_nearest(self) -> bool:
        """Whether it is a rescorer of what BM25 finds together with the nearest documents."""
        return isinstance(self.rescorer, PartialRescorer) and self.rescorer.joins_nearest

    @property
    def fields(self) -> tuple[str, ...]:
        """Numeric fields of documents that the method reads."""
        return self.rescorer.fields(self.params) if isinstance(self.rescorer, FieldRescorer) else ()

    @property
    def needs(self) -> frozenset[Feature]:
        """Features of documents and queries that the method reads, apart from its first pass's."""
        if self.retriever is not None:
            return self.retriever.needs(self.params) | {Feature.POOLED}
        if self.strategy is not None:
            reranker = strategy_reranker(self)
            return reranker.needs(reranker.Params()) | reranker.wants - {Feature.OFFSETS} | {Feature.POOLED}
        if self.rescorer is not None:
            needs: frozenset[Feature] = self.rescorer.needs(self.params) | self.rescorer.wants - {Feature.OFFSETS}
            return needs | self.rescorer.takes(self.params) if isinstance(self.rescorer, PartialRescorer) else needs
        return frozenset({Feature.POOLED}) if self.name in ("dense", "hybrid") else frozenset()


def names() -> tuple[str, ...]:
    """Return every method's name: retrieval first, then the registries' rescorers, rewriters and retrievers."""
    rescoring = (name for name in rescorers() if name not in RETRIEVAL)
    return (*RETRIEVAL, *rescoring, *STRATEGIES, *rewriters.names(), *(f"{KNN}{name}" for name in retrievers.names()))


def resolve(
    requested: Sequence[str],
    params: Mapping[str, Mapping[str, Any]] | None = None,
    served: Mapping[str, Any] | None = None,
) -> tuple[EvaluatedMethod, ...]:
    """Return methods by name, in the order given, each once, with parameters by name; a group means all of it."""
    params = params or {}
    requested = list(dict.fromkeys(chain.from_iterable(GROUPS.get(name, (name,)) for name in requested)))
    methods = tuple(resolve_one(name, params.get(name, {}), served) for name in requested)
    for name in params:
        if name not in requested:
            others = ", ".join(requested)
            raise InvalidRequest(f"params are given for [{name}], which is not among the methods: {others}")
    return methods


def resolve_one(
    name: str, params: Mapping[str, Any] | None = None, served: Mapping[str, Any] | None = None
) -> EvaluatedMethod:
    """Return one method by name; see :func:`resolve`."""
    if name in RETRIEVAL:
        return EvaluatedMethod(name, entry_points.parse_params(RETRIEVAL[name], params or {}, name))
    if name not in names():
        raise InvalidRequest(f"unknown method [{name}]{did_you_mean(name, (*names(), *GROUPS), USUAL)}")
    if name.startswith(KNN):
        retriever = retrievers.load(name.removeprefix(KNN))
        return EvaluatedMethod(name, retrievers.parse_params(retriever, params or {}), retriever=retriever)
    if name in rewriters.names():
        rewriter = rewriters.load(name)
        return EvaluatedMethod(name, rewriters.parse_params(rewriter, params or {}), rewriter=rewriter)
    if name in STRATEGIES:
        strategy = STRATEGIES[name]
        parsed = entry_points.parse_params(strategy.Params, params or {}, name)
        return EvaluatedMethod(name, with_defaults(parsed, None), strategy=strategy)
    rescorer = load(name)
    return EvaluatedMethod(name, parse_params(rescorer, params or {}, served), rescorer)


def strategy_reranker(method: EvaluatedMethod) -> Rescorer[Any]:
    """Return the rescorer that a strategy uses as its reranker."""
    assert isinstance(method.params, StrategyParams)  # noqa: S101 - of every strategy
    name = method.params.reranker
    if name not in BY_THEMSELVES:
        raise InvalidRequest(
            f"[{method.name}] is evaluated with a reranker of this project, not with [{name}]"
            f"{did_you_mean(name, BY_THEMSELVES)}"
        )
    return load(name)


def retrieval(methods: Sequence[EvaluatedMethod]) -> dict[str, EvaluatedMethod]:
    """Return the first-pass methods by name: those among the methods, and the others with their defaults."""
    given = {method.name: method for method in methods if method.name in RETRIEVAL}
    return {name: given.get(name) or resolve_one(name) for name in RETRIEVAL}
