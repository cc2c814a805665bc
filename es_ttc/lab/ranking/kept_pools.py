"""Pools in files, without the queries' texts: what a killed command has read is not read again."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import orjson

from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.report import replace
from es_ttc.lab.ranking.pools import Grades, Pool
from es_ttc.rescorers.blend.weights import Trust


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
        trust=np.array([(pool.trust.words, pool.trust.vectors) for pool in pools]),
        queries=np.array([pool.query_vector for pool in pools]),
        vectors=np.array([*distinct.values()]),
        places=np.array([places[None if vector is None else id(vector)] for vector in vectors], np.intp),
    )
    replace(file, packed.getvalue())


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
        pools.append(
            Pool(
                query,
                tuple(names),
                scores[own],
                Trust(*trust[number].tolist()),
                *graded(names, judged.qrels[query]),
                query_vector=queries[number],
                vectors=[None if place < 0 else vectors[place] for place in places[own]],
            )
        )
    return pools


def graded(names: Sequence[str], judged: Mapping[str, int]) -> tuple[Grades, Grades, Grades]:
    """Return `grades`, `behind` and `judged` of a pool of an index, behind which nothing is ranked."""
    grades = np.array([judged.get(name, 0) for name in names], np.int64)
    return grades, grades[:0], np.array(sorted(judged.values(), reverse=True), np.int64)
