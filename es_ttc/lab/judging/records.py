"""Judgements and pooled queries, and their limits; the signals of a pool, from which weights of blend are chosen."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Self, get_args

import numpy as np
import orjson

from es_ttc.errors import InvalidRequest
from es_ttc.lab.ranking.pools import Pool, Pools, pool_grades
from es_ttc.rescorers.blend.signals import SignalName
from es_ttc.rescorers.blend.weights import Trust
from es_ttc.vectors.tokens import Float32

GRADES = (0, 1, 2, 3)  # not relevant, slightly relevant, relevant, highly relevant
DEFAULT_DEPTH = 10
MAX_POOL_DEPTH = 100  # documents of each method's run that are judged at most, and documents of a run that are kept
MAX_METHODS = 8
MAX_NAME_LENGTH = 100  # characters of a judge's name
MAX_ID_LENGTH = 512  # bytes of the id of a query or a document: the engines' own limit of ids
MAX_TEXT_LENGTH = 10_000  # characters of a query
MAX_METHOD_LENGTH = 1_000  # characters of a method with its parameters


class JudgementSource(StrEnum):
    """Where a judgement comes from."""

    PERSON = "person"
    LLM = "llm"
    IMPORT = "import"


@dataclass(frozen=True, slots=True, eq=False)
class LoggedSignals:
    """The signals of the k documents that blend scores for a query: ``(k, s)`` float32, NaN where one is lacking."""

    names: tuple[SignalName, ...]
    documents: tuple[str, ...]
    scores: Float32
    trust: Trust
    encoder: str

    @classmethod
    def of(cls, pool: Pool, pools: Pools) -> Self:
        """Return the signals of one pool."""
        return cls(pools.signals, pool.documents, pool.scores, pool.trust, pools.encoder)

    def as_dict(self) -> dict[str, Any]:
        """Return them as JSON, 16 bytes a document and signal at most."""
        return {
            "names": list(self.names),
            "documents": list(self.documents),
            "scores": base64.b64encode(self.scores.astype("<f4").tobytes()).decode(),
            "trust": asdict(self.trust),
            "encoder": self.encoder,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self | None:
        """Return stored signals; None if another version wrote them with signals that are unknown here."""
        names: tuple[SignalName, ...] = tuple(stored["names"])
        if not set(names) <= set(get_args(SignalName)):
            return None
        documents = tuple(map(str, stored["documents"]))
        scores = np.frombuffer(base64.b64decode(stored["scores"]), "<f4").astype(np.float32)
        trusted = stored["trust"]
        trust = Trust(float(trusted["words"]), float(trusted["vectors"]), bool(trusted.get("few_words")))
        return cls(names, documents, scores.reshape(len(documents), len(names)), trust, str(stored["encoder"]))

    def pool(self, query: str, judged: Mapping[str, int]) -> Pool:
        """Return the pool with the grades of its documents; a document without a grade counts as not relevant."""
        return Pool(query, self.documents, self.scores, self.trust, *pool_grades(self.documents, judged))


@dataclass(frozen=True, slots=True)
class Judgement:
    """One judge's grade of a document for a query."""

    query: str
    document: str
    judge: str
    grade: int
    source: JudgementSource = JudgementSource.PERSON

    def __post_init__(self) -> None:
        check_id("query", self.query)
        check_id("document", self.document)
        check_judge(self.judge)
        if type(self.grade) is not int or self.grade not in GRADES:
            raise InvalidRequest(f"[grade] of document [{self.document}] is {self.grade}: give 0, 1, 2 or 3")


@dataclass(frozen=True, slots=True)
class PooledMethod:
    """A method whose documents are pooled."""

    method: str
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.method or len(self.name) > MAX_METHOD_LENGTH:
            raise InvalidRequest(
                f"[method] [{self.method[:50]}] has {len(self.name)} characters with its parameters: give 1 to "
                f"{MAX_METHOD_LENGTH:,}"
            )

    @property
    def name(self) -> str:
        """The method's name, followed by its parameters if it has any."""
        if not self.params:
            return self.method
        return f"{self.method} {orjson.dumps(self.params, option=orjson.OPT_SORT_KEYS).decode()}"


@dataclass(frozen=True, slots=True)
class PooledQuery:
    """A query and what some methods found for it."""

    id: str
    text: str
    methods: tuple[PooledMethod, ...] = ()
    runs: tuple[tuple[str, ...], ...] = ()
    depth: int = DEFAULT_DEPTH
    signals: LoggedSignals | None = None

    def __post_init__(self) -> None:
        check_id("query", self.id)
        if not self.text.strip() or len(self.text) > MAX_TEXT_LENGTH:
            raise InvalidRequest(
                f"the text of query [{self.id}] has {len(self.text)} characters: give 1 to {MAX_TEXT_LENGTH:,}"
            )
        if not 1 <= self.depth <= MAX_POOL_DEPTH:
            raise InvalidRequest(f"[depth] is {self.depth}: give 1 to {MAX_POOL_DEPTH}")
        if len(self.methods) > MAX_METHODS:
            raise InvalidRequest(f"[methods] names {len(self.methods)}, and up to {MAX_METHODS} are pooled: name fewer")
        names = [method.name for method in self.methods]
        if len(set(names)) < len(names):
            raise InvalidRequest("[methods] names a method twice with the same parameters: name it once")
        for name, run in zip(names, self.runs, strict=True):
            if len(run) > MAX_POOL_DEPTH or len(set(run)) < len(run):
                raise InvalidRequest(
                    f"the run of [{name}] for query [{self.id}] has {len(run)} documents, {len(set(run))} different: "
                    f"give up to {MAX_POOL_DEPTH}, each once"
                )
            for document in run:
                check_id("document", document)

    @property
    def documents(self) -> tuple[str, ...]:
        """The documents to judge: the first ``depth`` of every run, each once."""
        return tuple(dict.fromkeys(document for run in self.runs for document in run[: self.depth]))

    def shuffled(self, judge: str) -> tuple[str, ...]:
        """Return the documents in an order that depends on judge and query alone, so that no method shows."""
        return tuple(sorted(self.documents, key=lambda document: _digest([judge, self.id, document])))

    def run_of(self, method: str) -> tuple[str, ...]:
        """Return the run of a method by its name with parameters; none if it was not pooled."""
        return next((run for one, run in zip(self.methods, self.runs, strict=True) if one.name == method), ())


def query_id(text: str) -> str:
    """Return the id of a query that was given without one: the same for equal texts."""
    return f"q-{_digest([text.strip()])[:12]}"


def judgement_id(index: str, query: str, document: str, judge: str) -> str:
    """Return the id of a judgement: judging again replaces it, and two judges never share one."""
    return _digest(["judgement", index, query, document, judge])


def pool_id(index: str, query: str) -> str:
    """Return the id of a pooled query."""
    return _digest(["pool", index, query])


def check_id(what: str, value: str) -> None:
    """Raise an error for an id that an engine would not take."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"the id of a {what} holds half a surrogate pair: give valid Unicode") from None
    if not 1 <= size <= MAX_ID_LENGTH:
        raise InvalidRequest(f"the id of a {what} has {size} bytes: give 1 to {MAX_ID_LENGTH}")


def check_judge(name: str) -> None:
    """Raise an error for a name that no judge may have."""
    if not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidRequest(f"[judge] must be a name of 1 to {MAX_NAME_LENGTH} characters without control characters")


def _digest(parts: Sequence[str]) -> str:
    return sha256(json.dumps(parts).encode()).hexdigest()[:32]


def logged_pools(
    index: str, signals: Sequence[tuple[str, LoggedSignals]], qrels: Mapping[str, Mapping[str, int]]
) -> Pools:
    """Return the pools of judged queries whose signals are kept, with the judgements of now."""
    first = signals[0][1]
    pools = tuple(one.pool(query, qrels[query]) for query, one in signals)
    return Pools(index, "judgements", first.encoder, first.names, pools, {"index": index, "first_pass": "bm25"})
