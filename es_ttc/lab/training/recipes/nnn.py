"""NNN-Tr (NNN decoding, section 3.2 and appendix B.5): adapters trained through the solver FISTA, unrolled."""

import math

import numpy as np
import torch
from torch import Tensor

from es_ttc.lab.training.data import Places, TrainingTask
from es_ttc.lab.training.heads import MixedMlp
from es_ttc.lab.training.losses import set_loss
from es_ttc.lab.training.measures import measure_encoder
from es_ttc.lab.training.options import NnnOptions
from es_ttc.lab.training.sides import (
    DOCUMENTS,
    TRAIN,
    VALID,
    FrozenSide,
    TunedSide,
    TwoSided,
    frozen_documents,
    frozen_queries,
)


def lipschitz(documents: Tensor, l2: Tensor | float = 0.0) -> Tensor:
    """Return ``L``, the greatest eigenvalue of ``D^T D`` plus l2: the steepest the gradient's slope gets."""
    with torch.no_grad():
        rows = documents.detach()
        smaller = rows if rows.shape[0] < rows.shape[1] else rows.T
        greatest: Tensor = torch.linalg.eigvalsh(smaller @ smaller.T)[-1]
        return greatest + l2


def unrolled(
    documents: Tensor,
    queries: Tensor,
    l1: Tensor | float,
    l2: Tensor | float,
    *,
    steps: int,
    bound: Tensor | float | None = None,
) -> Tensor:
    """Return the coefficients after so many steps of equation 5 from 0, ``(b, n)``, none negative.

    Documents are the dictionary's rows, ``(n, d)``, each query of ``(b, d)`` a problem of its own, `bound` is ``L``.
    """
    size = lipschitz(documents, l2) if bound is None else bound
    target = queries @ documents.T
    gram = documents @ documents.T if len(documents) <= 2 * documents.shape[1] else None
    x = torch.zeros_like(target)
    ahead = x
    theta = 1.0
    for _ in range(steps):
        rebuilt = ahead @ gram if gram is not None else (ahead @ documents) @ documents.T
        following = torch.relu(ahead - (rebuilt - target + l2 * ahead + l1) / size)
        theta_next = (1 + math.sqrt(1 + 4 * theta * theta)) / 2
        ahead = following + (theta - 1) / theta_next * (following - x)
        x, theta = following, theta_next
    return x


def lacking(documents: Tensor, queries: Tensor, x: Tensor, l1: Tensor | float) -> Tensor:
    """Return by how much each document's inner product with the residual exceeds l1, ``(b, n)``.

    At a solution it is ``l2 x`` for the selected ones and not positive for the others (section 2.2).
    """
    return (queries - x @ documents) @ documents.T - l1


def selection_scores(
    documents: Tensor, queries: Tensor, x: Tensor, l1: Tensor | float, relevant: Tensor, *, slack: float = 1.0
) -> Tensor:
    """Return the scores for the set loss: coefficients, and ``slack`` times the gap of unselected relevant documents.

    A coefficient of 0 has no gradient, so training could never select a relevant document that the solver left out; its
    gap to selection has one. ``slack = 0`` is the loss on coefficients ``x`` alone, ``(b, n)``, as in the paper.
    """
    if slack == 0:
        return x
    lack = lacking(documents, queries, x, l1).clamp(max=0)
    return torch.where((x == 0) & relevant, slack * lack, x)


_BLOCK = 512  # number of validation queries decoded at once


class NnnRecipe(TwoSided):
    """Trains adapters of queries and documents through the unrolled solver, with the set loss on relevant documents."""

    def __init__(
        self, task: TrainingTask, options: NnnOptions, *, queries: FrozenSide | TunedSide | None = None
    ) -> None:
        super().__init__(
            queries or frozen_queries(task, MixedMlp(task.dims, options.hidden)),
            frozen_documents(task, MixedMlp(task.dims, options.hidden)),
        )
        self._task = task
        self._options = options
        self.examples = len(task.train)
        self._whole = len(task.documents) <= options.dictionary
        self._near: Places = np.zeros((0, 0), np.intp)
        self._valid = task.valid.mask(len(task.documents))

    def begin_epoch(self, random: np.random.Generator) -> None:  # noqa: ARG002
        """Find the nearest documents of each query, if the dictionary is not the whole corpus."""
        if not self._whole:
            with torch.no_grad():
                self._near = self._nearest()

    def loss(self, batch: Places, random: np.random.Generator) -> Tensor:  # noqa: ARG002
        """Return the set loss of some queries."""
        places = None if self._whole else self._dictionary_of(batch)
        queries, documents = self.queries.rows(TRAIN, batch), self.documents.rows(DOCUMENTS, places)
        relevant = self._task.train.mask(len(self._task.documents), batch)
        relevant = relevant if places is None else relevant[:, torch.from_numpy(places)]
        options = self._options
        # The solver's thresholds depend on differences below half precision.
        with torch.autocast(queries.device.type, enabled=False):
            queries, documents = queries.float(), documents.float()
            x = unrolled(documents, queries, options.l1, options.l2, steps=options.steps)
            targets = relevant.to(x.device)
            scores = selection_scores(documents, queries, x, options.l1, targets, slack=options.slack)
            return set_loss(scores, targets, margin=options.margin, temperature=options.temperature)

    def validate(self) -> float:
        """Return the mean measure of the validation queries; NaN if the solver selects nothing."""
        documents, queries = self.documents.rows(DOCUMENTS), self.queries.rows(VALID)
        options = self._options
        scores, selected = decoded(documents, queries, options.l1, options.l2, steps=options.decode_steps)
        if not selected:
            return math.nan
        return float(measure_encoder(options.metric, scores.cpu(), self._valid).mean())

    def params(self) -> dict[str, float]:
        """Return the parameters of the method `nnn` that it was trained with."""
        return {"l1": round(self._options.l1, 6), "l2": round(self._options.l2, 6)}

    def _nearest(self) -> Places:
        documents, found = self.documents.rows(DOCUMENTS), []
        for start in range(0, self.examples, _BLOCK):
            rows = self.queries.rows(TRAIN, np.arange(start, min(start + _BLOCK, self.examples)))
            count = min(self._options.nearest, len(documents))
            found.append((rows @ documents.T).topk(count, dim=1).indices.cpu().numpy())
        return np.concatenate(found)

    def _dictionary_of(self, batch: Places) -> Places:
        relevant = [self._task.train.relevant[place] for place in batch]
        return np.unique(np.concatenate([self._near[batch].ravel(), *relevant]))


GRID = tuple((l1, l2) for l1 in (0.02, 0.05, 0.1, 0.2, 0.3) for l2 in (0.05, 0.5, 2.0, 5.0, 10.0, 20.0, 50.0))
"""Values of l1 and l2 to try; the paper's own grid is not stated."""
_CHOOSING = 500
_CHOOSING_STEPS = 60


@torch.no_grad()
def choose_penalty(task: TrainingTask, metric: str) -> tuple[float, float]:
    """Return the l1 and l2 that are best on validation queries before training, as the paper fixes them."""
    places = np.arange(min(_CHOOSING, len(task.valid)))
    queries, documents = torch.from_numpy(task.valid.vectors[places]), torch.from_numpy(task.documents)
    relevant = task.valid.mask(len(documents), places)

    def value(penalty: tuple[float, float]) -> float:
        scores, _ = decoded(documents, queries, *penalty, steps=_CHOOSING_STEPS)
        return float(measure_encoder(metric, scores, relevant).mean())

    return max(GRID, key=value)


def decoded(
    documents: Tensor, queries: Tensor, l1: Tensor | float, l2: Tensor | float, *, steps: int
) -> tuple[Tensor, bool]:
    """Return scores that rank as NNN decoding does (selected, then by cosine), and whether any is selected."""
    bound = lipschitz(documents, l2)
    parts, selected = [], False
    for start in range(0, len(queries), _BLOCK):
        block = queries[start : start + _BLOCK]
        x = unrolled(documents, block, l1, l2, steps=steps, bound=bound)
        selected = selected or bool((x > 0).any())
        parts.append(torch.where(x > 0, x + 2, block @ documents.T))
    return torch.cat(parts), selected
