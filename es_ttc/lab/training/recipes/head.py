"""Learned heads (Test-Time Compute for Frozen Embedding Models, appendix C): one map for queries and documents."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from es_ttc.encoders.base import Role
from es_ttc.encoders.heads import Head, Linear
from es_ttc.lab.training.data import Places, TrainingTask
from es_ttc.lab.training.heads import LinearHead, LowRank, ResidualMlp, whitening
from es_ttc.lab.training.losses import info_nce
from es_ttc.lab.training.measures import measure_encoder
from es_ttc.lab.training.options import HeadOptions
from es_ttc.lab.training.recipes.dense import known_positives, pairs_of
from es_ttc.lab.training.sides import Trainable


class Whitened(nn.Module):
    """A whitening, without trainable weights."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self._layer = layer

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows."""
        return torch.from_numpy(Head((self._layer,))(rows.cpu().numpy())).to(rows.device)

    def layer(self) -> Linear:
        """Return it as a layer for serving."""
        return self._layer


class HeadRecipe(Trainable):
    """One head over the pairs of several collections; batches mix them."""

    def __init__(self, tasks: Sequence[TrainingTask], options: HeadOptions) -> None:
        self._tasks = tasks
        self._options = options
        self.head: Any = _module(tasks, options)
        self.learned: nn.Module = self.head
        starts = np.cumsum([0, *(len(task.documents) for task in tasks)])
        self._documents = torch.from_numpy(np.concatenate([task.documents for task in tasks]))
        self._queries = torch.from_numpy(np.concatenate([task.train.vectors for task in tasks]))
        self._relevant = [
            one + start for task, start in zip(tasks, starts[:-1], strict=True) for one in task.train.relevant
        ]
        self._pairs = pairs_of(self._relevant)
        self.examples = len(self._pairs)

    def loss(self, batch: Places, random: np.random.Generator) -> Tensor:  # noqa: ARG002
        """Return InfoNCE of some pairs."""
        queries, documents = self._pairs[batch].T
        rows = self._mapped(self._queries[torch.from_numpy(queries)])
        positives = self._mapped(self._documents[torch.from_numpy(documents)])
        excluded = known_positives(self._relevant, queries, documents)
        return info_nce(rows, positives, self._options.temperature, excluded.to(rows.device))

    def validate(self) -> float:
        """Return the mean over the collections of their validation queries' mean measure."""
        means = []
        for task in self._tasks:
            queries, documents = (self._mapped(torch.from_numpy(one)) for one in (task.valid.vectors, task.documents))
            found = measure_encoder(
                self._options.metric, (queries @ documents.T).cpu(), task.valid.mask(len(task.documents))
            )
            means.append(float(found.mean()))
        return float(np.mean(means))

    def heads(self) -> dict[Role, Head]:
        """Return the head for serving, the same for both roles."""
        head = Head((self.head.layer(),))
        return {"query": head, "document": head}

    def _mapped(self, rows: Tensor) -> Tensor:
        device = next((parameter.device for parameter in self.learned.parameters()), torch.device("cpu"))
        mapped: Tensor = self.head(rows.to(device))
        return mapped


def _module(tasks: Sequence[TrainingTask], options: HeadOptions) -> nn.Module:
    dims = tasks[0].dims
    match options.family:
        case "whiten":
            return Whitened(
                whitening(np.concatenate([rows for task in tasks for rows in (task.documents, task.train.vectors)]))
            )
        case "linear":
            return LinearHead(dims)
        case "low-rank":
            return LowRank(dims, options.rank)
        case "mlp":
            return ResidualMlp(dims, options.hidden)
