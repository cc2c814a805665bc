"""A late-interaction model's training: contrastive loss over MaxSim, with in-batch and mined negatives."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn

from es_ttc.encoders.base import Role
from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.rankings import ReportStage, silent, top
from es_ttc.lab.training.data import Places, collection_texts, judged_parts, relevant_places
from es_ttc.lab.training.loop import Recipe
from es_ttc.lab.training.measures import measure_encoder
from es_ttc.lab.training.options import LateOptions

MINED = 50  # ranks of BM25 that negatives are drawn from


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
    folder: Path, *, seed: int, most_queries: int | None = None, pool: int, progress: ReportStage = silent
) -> LateTask:
    """Read a BEIR folder, and find the negatives."""
    train, valid, own = judged_parts(folder, seed=seed, most_queries=most_queries)
    texts = collection_texts(train)
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


def _judged(collection: Collection, index: Bm25, progress: ReportStage) -> JudgedTexts:
    relevant = relevant_places(collection)
    texts = [collection.queries[query] for query in relevant]
    mined = []
    for done, (text, known) in enumerate(zip(texts, relevant.values(), strict=True), 1):
        mined.append(negatives_of(index, text, known))
        progress("negatives", done, len(texts))
    return JudgedTexts(texts, list(relevant.values()), mined)


def negatives_of(index: Bm25, text: str, relevant: Places) -> Places:
    """Return the first :data:`MINED` documents of BM25 that are not relevant, then of the corpus's order."""
    found = top(index.scores(text), MINED + len(relevant)).documents
    return found[~np.isin(found, relevant)][:MINED]


_AT_ONCE = 32
_QUERIES_AT_ONCE = 16


class LateRecipe(Recipe):
    """MaxSim of queries and documents.

    A train query is an example. In every epoch one of its relevant documents and some of its mined negatives are drawn
    anew. Negatives of a query are all other documents of the batch that are not judged relevant to it.
    """

    def __init__(
        self, task: LateTask, model: MultiVectorEncoder, options: LateOptions, progress: ReportStage = silent
    ) -> None:
        self.learned: nn.Module = model
        self.examples = len(task.train)
        self._model = model
        self._task = task
        self._options = options
        self._progress = progress
        self._known = torch.zeros(0, 0, dtype=torch.bool)
        self._loss = MultiVectorMultipleNegativesRankingLoss(
            model, scale=1 / options.temperature, similarity_fct=self._scores_without_known, mini_batch_size=_AT_ONCE
        )
        self.drawn = np.zeros((0, 0), np.intp)
        self._relevant = _in_pool(task.valid, task.pool)

    def begin_epoch(self, random: np.random.Generator) -> None:
        """Draw the documents of each query, ``(queries, 1 + negatives)``: a relevant one, then mined ones."""
        train, count = self._task.train, self._options.negatives
        self.drawn = np.array(
            [
                [random.choice(relevant), *random.choice(mined, count, replace=len(mined) < count)]
                for relevant, mined in zip(train.relevant, train.mined, strict=True)
            ],
            np.intp,
        )

    def loss(self, batch: Places, random: np.random.Generator) -> Tensor:  # noqa: ARG002
        """Return the library's loss of some queries."""
        drawn = self.drawn[batch]
        train = self._task.train
        self._known = known_relevant([train.relevant[query] for query in batch], drawn)
        documents = [[self._task.documents[place] for place in column] for column in drawn.T]
        columns = [self._features(texts, "document") for texts in documents]
        found: Tensor = self._loss([self._features([train.texts[query] for query in batch], "query"), *columns])
        return found

    def validate(self) -> float:
        """Return the mean measure of the validation queries over the pool, by the library's own MaxSim."""
        documents = self._encoded([self._task.documents[place] for place in self._task.pool], "document")
        queries = self._encoded(self._task.valid.texts, "query")
        scores = torch.cat(
            [
                self._model.similarity(queries[at : at + _QUERIES_AT_ONCE], documents).cpu()
                for at in range(0, len(queries), _QUERIES_AT_ONCE)
            ]
        )
        return float(measure_encoder(self._options.metric, scores, self._relevant).mean())

    def _features(self, texts: list[str], role: Role) -> dict[str, Any]:
        """Return texts as the library's collator prepares them, documents cut at the length of training."""
        length = {"max_length": self._options.train_length} if role == "document" else {}
        prompt = self._model.prompts.get(role) or None
        features = self._model.preprocess(texts, prompt=prompt, task=role, **length)
        return {**batch_to_device(features, self._model.device), "task": role}

    def _scores_without_known(self, queries: Any, documents: Any, **masks: Any) -> Tensor:
        """Return the library's MaxSim scores, with relevant documents of other queries out of the softmax."""
        scores: Tensor = colbert_scores(queries, documents, **masks)
        return scores.masked_fill(self._known.to(scores.device), float("-inf"))

    def _encoded(self, texts: Sequence[str], role: Role) -> list[Tensor]:
        encode = self._model.encode_query if role == "query" else self._model.encode_document
        found: list[Tensor] = []
        for at in range(0, len(texts), _AT_ONCE):
            part = list(texts[at : at + _AT_ONCE])
            found += encode(part, batch_size=_AT_ONCE, show_progress_bar=False)
            self._progress(f"validation, {'queries' if role == 'query' else 'documents'}", len(found), len(texts))
        return found


def known_relevant(relevant: Sequence[Places], drawn: Places) -> Tensor:
    """Return which of ``(b, n)`` drawn documents are no negatives of a query, ``(b, b * n)``; its positive stays."""
    known = np.stack([np.isin(drawn.reshape(-1), places) for places in relevant])
    rows = np.arange(len(drawn))
    known[rows, rows * drawn.shape[1]] = False
    return torch.from_numpy(known)


def _in_pool(queries: JudgedTexts, pool: Places) -> Tensor:
    return torch.from_numpy(np.stack([np.isin(pool, relevant) for relevant in queries.relevant]))
