"""The two sides of a bi-encoder in training: the sources of the vectors of queries and of documents."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from es_ttc.encoders.base import Float32
from es_ttc.encoders.heads import Head
from es_ttc.lab.training.data import Places, Task

DOCUMENTS, TRAIN, VALID = "documents", "train", "valid"


class FrozenSide(nn.Module):
    """Frozen vectors, mapped by a trainable head.

    Args:
        vectors: By name, ``(n, d)`` each.
    """

    def __init__(self, vectors: Mapping[str, Float32], head: Any) -> None:
        super().__init__()
        self.head = head
        for name, rows in vectors.items():
            self.register_buffer(f"_{name}", torch.from_numpy(rows), persistent=False)

    def rows(self, what: str, places: Places | None = None) -> Tensor:
        """Return unit rows, ``(b, d)``: of ``documents``, ``train`` or ``valid``, at some positions or all."""
        vectors: Tensor = getattr(self, f"_{what}")
        rows: Tensor = self.head(vectors if places is None else vectors[torch.from_numpy(places)])
        return rows

    def each(self, what: str, places: Places) -> Tensor:
        """Return unit rows at positions that may repeat; each is mapped once."""
        distinct, where = np.unique(places, return_inverse=True)
        return self.rows(what, distinct)[torch.from_numpy(where)]

    def served(self) -> Head:
        """Return the head for serving."""
        return Head((self.head.layer(),))


def queries_of(task: Task) -> dict[str, Float32]:
    """Return a task's query vectors by name."""
    return {TRAIN: task.train.vectors, VALID: task.valid.vectors}
