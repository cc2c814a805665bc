"""An adapter by listwise distillation: a query's cosines over its pool shall be distributed as a teacher says.

The loss is ListNet's top-one cross-entropy (Cao et al. 2007, *Learning to rank: from pairwise approach to listwise
approach*, equation 6), with the temperature of a contrastive loss on the cosines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from es_ttc.lab.ranking.pools import Float64
from es_ttc.lab.training.data import Places
from es_ttc.lab.training.heads import MixedMlp
from es_ttc.lab.training.sides import DOCUMENTS, TRAIN, VALID, FrozenSide, TwoSided
from es_ttc.vectors.tokens import Float32

HIDDEN = 768
TEMPERATURE = 0.05


@dataclass(frozen=True, slots=True)
class Lists:
    """Queries, ``(q, d)`` float32 unit rows, each with positions of documents and the share of 1 that each should get.

    Shares sum to less than 1 for a query that counts less.
    """

    vectors: Float32
    documents: Sequence[Places]
    targets: Sequence[Float64]

    def __len__(self) -> int:
        return len(self.documents)

    def part(self, places: Places) -> "Lists":
        """Return some of them."""
        return Lists(self.vectors[places], [self.documents[i] for i in places], [self.targets[i] for i in places])


class ListwiseRecipe(TwoSided):
    """Trains an adapter for queries; with `both`, one for documents too."""

    def __init__(self, documents: Float32, train: Lists, valid: Lists, *, both: bool = False) -> None:
        dims = documents.shape[1]
        super().__init__(
            FrozenSide({TRAIN: train.vectors, VALID: valid.vectors}, MixedMlp(dims, HIDDEN)),
            FrozenSide({DOCUMENTS: documents}, MixedMlp(dims, HIDDEN) if both else None),
        )
        self._train, self._valid = train, valid
        self.examples = len(train)

    def loss(self, batch: Places, random: np.random.Generator) -> Tensor:  # noqa: ARG002
        """Return the mean cross-entropy of some queries."""
        return self._cross_entropy(self._train.part(batch), self.queries.rows(TRAIN, batch))

    def validate(self) -> float:
        """Return the negative cross-entropy of the validation queries."""
        return -float(self._cross_entropy(self._valid, self.queries.rows(VALID)))

    def _cross_entropy(self, lists: Lists, queries: Tensor) -> Tensor:
        """Return the mean cross-entropy of lists, whose mapped queries are ``(b, d)``."""
        device = queries.device
        used, where = np.unique(np.concatenate(lists.documents), return_inverse=True)
        documents = self.documents.rows(DOCUMENTS, used)
        lengths = [len(one) for one in lists.documents]
        rows = np.repeat(np.arange(len(lists)), lengths)
        columns = np.concatenate([np.arange(length) for length in lengths])
        logits = torch.full((len(lists), max(lengths)), float("-inf"), device=device)
        cosines = (queries @ documents.T)[torch.from_numpy(rows), torch.from_numpy(where)]
        logits[torch.from_numpy(rows), torch.from_numpy(columns)] = cosines / TEMPERATURE
        logs = torch.log_softmax(logits, dim=1)[torch.from_numpy(rows), torch.from_numpy(columns)]
        targets = torch.from_numpy(np.concatenate(lists.targets).astype(np.float32)).to(device)
        return -(targets * logs).sum() / len(lists)
