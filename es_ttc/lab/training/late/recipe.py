"""The recipe: sentence-transformers' contrastive loss over MaxSim, with in-batch and mined negatives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn

from es_ttc.encoders.base import Role
from es_ttc.lab.evaluation.rankings import Progress, silent
from es_ttc.lab.training.data import Places
from es_ttc.lab.training.late.data import JudgedTexts, LateTask
from es_ttc.lab.training.loop import Recipe
from es_ttc.lab.training.measures import measure
from es_ttc.lab.training.options import LateOptions

_AT_ONCE = 32
_QUERIES_AT_ONCE = 16


class LateRecipe(Recipe):
    """MaxSim of queries and documents.

    A train query is an example. In every epoch one of its relevant documents and some of its mined negatives are drawn
    anew. Negatives of a query are all other documents of the batch that are not judged relevant to it.
    """

    def __init__(
        self, task: LateTask, model: MultiVectorEncoder, options: LateOptions, progress: Progress = silent
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
        return float(measure(self._options.metric, scores, self._relevant).mean())

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
    """Return which documents of a batch are no negatives of a query, ``(b, b * n)`` bool; its positive stays.

    `drawn` is ``(b, n)``: each query's documents, its positive first.
    """
    known = np.stack([np.isin(drawn.reshape(-1), places) for places in relevant])
    rows = np.arange(len(drawn))
    known[rows, rows * drawn.shape[1]] = False
    return torch.from_numpy(known)


def _in_pool(queries: JudgedTexts, pool: Places) -> Tensor:
    return torch.from_numpy(np.stack([np.isin(pool, relevant) for relevant in queries.relevant]))
