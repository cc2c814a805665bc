"""A collection for the training of a late-interaction model: texts, relevant documents, mined negatives."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.rankings import Progress, silent, top
from es_ttc.lab.training.data import Places, judged_parts, relevant_places, texts_of

MINED = 50
"""Ranks of BM25 that negatives are drawn from."""


@dataclass(frozen=True)
class JudgedTexts:
    """Queries with positions of relevant documents, one or more, and of BM25's first others (`mined`)."""

    texts: Sequence[str]
    relevant: Sequence[Places]
    mined: Sequence[Places]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class LateTask:
    """A collection for training."""

    name: str
    documents: Sequence[str]
    train: JudgedTexts
    valid: JudgedTexts
    held_out: bool
    pool: Places

    @property
    def digest(self) -> str:
        """A hash of everything that training uses."""
        total = hashlib.sha256()
        for text in (*self.documents, *self.train.texts, *self.valid.texts):
            total.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        for places in (*self.train.relevant, *self.valid.relevant, self.pool):
            total.update(places.astype(np.int64).tobytes() + b";")
        return total.hexdigest()[:16]


def load_late_task(
    folder: Path, *, seed: int, most_queries: int | None = None, pool: int, progress: Progress = silent
) -> LateTask:
    """Read a BEIR folder, and find the negatives."""
    train, valid, own = judged_parts(folder, seed=seed, most_queries=most_queries)
    texts = texts_of(train)
    index = Bm25(texts)
    queries = [_judged(part, index, progress) for part in (train, valid)]
    if not len(queries[0]) or not len(queries[1]):
        raise ConfigurationError(f"[{folder}] has too few judged train queries: {len(train.queries)}")
    if any(not len(mined) for mined in queries[0].mined):
        raise ConfigurationError(f"[{folder}] has a train query to which all documents are relevant: remove it")
    return LateTask(train.name, texts, queries[0], queries[1], own, pool_of(queries[1], pool))


def pool_of(queries: JudgedTexts, size: int) -> Places:
    """Return the relevant documents of all queries, filled up to a size by what was mined for them, rank by rank."""
    chosen = dict.fromkeys(place for found in queries.relevant for place in found.tolist())
    for place in _by_rank(queries.mined):
        if len(chosen) >= size:
            break
        chosen[place] = None
    return np.array(sorted(chosen), np.intp)


def _by_rank(mined: Sequence[Places]) -> Iterable[int]:
    for rank in range(max((len(found) for found in mined), default=0)):
        yield from (int(found[rank]) for found in mined if rank < len(found))


def _judged(collection: Collection, index: Bm25, progress: Progress) -> JudgedTexts:
    """Return the queries with a relevant document in the corpus."""
    relevant = relevant_places(collection)
    texts = [collection.queries[query] for query in relevant]
    mined = []
    for done, (text, known) in enumerate(zip(texts, relevant.values(), strict=True), 1):
        mined.append(negatives_of(index, text, known))
        progress("negatives", done, len(texts))
    return JudgedTexts(texts, list(relevant.values()), mined)


def negatives_of(index: Bm25, text: str, relevant: Places) -> Places:
    """Return the first :data:`MINED` documents of BM25 that are not judged relevant, best first.

    Documents without a word of the query follow in the corpus's order, so a small corpus has negatives too.
    """
    found = top(index.scores(text), MINED + len(relevant)).documents
    return found[~np.isin(found, relevant)][:MINED]
