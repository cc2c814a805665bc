"""The dense baseline (NNN decoding, appendix B.2): adapters for queries and for documents, InfoNCE in the batch."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from es_ttc.lab.training.data import Places, TrainingTask
from es_ttc.lab.training.heads import MixedMlp
from es_ttc.lab.training.losses import info_nce
from es_ttc.lab.training.measures import measure_encoder
from es_ttc.lab.training.options import DenseOptions
from es_ttc.lab.training.sides import (
    DOCUMENTS,
    TRAIN,
    VALID,
    FrozenSide,
    TunedSide,
    TwoSided,
    frozen_documents,
    frozen_queries,
    rows_of,
)


class DenseRecipe(TwoSided):
    """Cosines of queries and documents, each through an adapter of its own.

    Each (query, relevant document) pair is an example. Documents of other pairs that are relevant to the query too are
    excluded from its negatives: with a few hundred documents they occur in every batch.
    """

    def __init__(
        self,
        task: TrainingTask,
        options: DenseOptions,
        *,
        queries: FrozenSide | TunedSide | None = None,
        documents: FrozenSide | TunedSide | None = None,
    ) -> None:
        super().__init__(
            queries or frozen_queries(task, MixedMlp(task.dims, options.hidden)),
            documents or frozen_documents(task, MixedMlp(task.dims, options.hidden)),
        )
        self._task = task
        self._options = options
        self._pairs = pairs_of(task.train.relevant)
        self._valid = task.valid.mask(len(task.documents))
        self.examples = len(self._pairs)

    def loss(self, batch: Places, random: np.random.Generator) -> Tensor:  # noqa: ARG002
        """Return InfoNCE of some pairs."""
        queries, documents = self._pairs[batch].T
        excluded = known_positives(self._task.train.relevant, queries, documents)
        rows, positives = rows_of(self.queries, TRAIN, queries), rows_of(self.documents, DOCUMENTS, documents)
        return info_nce(rows, positives, self._options.temperature, excluded.to(rows.device))

    def validate(self) -> float:
        """Return the mean measure of the validation queries, ranked by cosine."""
        scores = (self.queries.rows(VALID) @ self.documents.rows(DOCUMENTS).T).cpu()
        return float(measure_encoder(self._options.metric, scores, self._valid).mean())


def known_positives(relevant: Sequence[Places], queries: Places, documents: Places) -> Tensor:
    """Return which documents of other pairs are relevant to each pair's query too, ``(b, b)`` bool."""
    known = np.stack([np.isin(documents, relevant[query]) for query in queries])
    np.fill_diagonal(known, val=False)
    return torch.from_numpy(known)


def pairs_of(relevant: Sequence[Places]) -> Places:
    """Return each query with each of its relevant documents, ``(p, 2)``."""
    return np.array([(query, document) for query, found in enumerate(relevant) for document in found], np.intp)
