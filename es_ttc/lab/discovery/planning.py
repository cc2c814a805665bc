"""Choose the queries and documents of a search, and those for the report that the search never uses."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from es_ttc.encoders.base import Encoder
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.demo import limit_style, stdlib
from es_ttc.lab.discovery.records import Plan, TaskPlan
from es_ttc.lab.discovery.tasks import Task, task_of
from es_ttc.lab.evaluation.datasets import Collection, load_collection, only, splits
from es_ttc.lab.evaluation.rankings import Progress, silent

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
    """Choose queries and documents of a BEIR folder.

    The search's queries are those of `split` (by default `train`, if there is one), the held-out ones those of
    `held_out` (`test`); a collection with one split is halved at random. All judged documents of the queries are
    included.
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


def load_tasks(plan: Plan, encoder: Encoder, *, held: bool = False, progress: Progress = silent) -> list[Task]:
    """Encode the tasks of a plan; on request, the held-out queries with their documents."""
    if encoder.identity.key != plan.identity:
        raise ConfigurationError(
            f"the search began with encoder [{plan.identity}], and this is [{encoder.identity.key}]: name that one"
        )
    return [task_of(collection, encoder, progress) for collection in collections(plan, held=held)]


def collections(plan: Plan, *, held: bool) -> Iterator[Collection]:
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
    """Return all documents with judgements for the queries, and others up to the limit."""
    known = [document.id for document in collection.documents if document.text or document.title]
    judged = {document for query in queries for document in collection.qrels[query]}
    others = _sample([one for one in known if one not in judged], max(0, size - len(judged)), seed)
    kept = judged | set(others)
    return tuple(one for one in known if one in kept)


def _sample(ids: Sequence[str], size: int, seed: int) -> tuple[str, ...]:
    if size >= len(ids):
        return tuple(ids)
    kept = set(_shuffled(ids, seed)[:size])
    return tuple(one for one in ids if one in kept)


def _shuffled(ids: Sequence[str], seed: int) -> list[str]:
    return random.Random(seed).sample(sorted(ids), len(ids))  # noqa: S311 - to be repeated, not a secret


def _halves(ids: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    first = set(_sample(ids, len(ids) // 2, seed))
    return [one for one in ids if one in first], [one for one in ids if one not in first]
