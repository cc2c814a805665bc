"""From pools and what teachers say to adapters: a query's cosines over its pool shall be distributed as they say.

The loss is ListNet's top-one cross-entropy (Cao et al. 2007, *Learning to rank: from pairwise approach to listwise
approach*, equation 6), with the temperature of a contrastive loss on the cosines.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from es_ttc.encoders.base import Role
from es_ttc.encoders.heads import Head
from es_ttc.lab.learning.teachers import Teacher, TeacherTarget
from es_ttc.lab.ranking.pools import Pools
from es_ttc.lab.training.data import Places, held_out_places
from es_ttc.lab.training.heads import MixedMlp
from es_ttc.lab.training.loop import ReportTraining, TrainingProgress, train
from es_ttc.lab.training.options import LoopOptions
from es_ttc.lab.training.sides import DOCUMENTS, TRAIN, VALID, FrozenSide, TwoSided
from es_ttc.vectors.tokens import Float32, Float64

HIDDEN = 768
TEMPERATURE = 0.05
MIN_QUERIES = 20  # with fewer queries nothing is learned: a fifth of them is too few to end the training by
MAX_SHARE = 0.02  # of a log that clicks on one document teach; see docs/results/learning.md


def loop_options(seed: int = 0) -> LoopOptions:
    """Return the options of the training loop; docs/results/learning.md says how they were chosen."""
    return LoopOptions(epochs=60, batch=64, learning_rate=3e-3, patience=3, seed=seed)


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
        device = queries.device
        used, where = np.unique(np.concatenate(lists.documents), return_inverse=True)
        documents = self.documents.rows(DOCUMENTS, used)
        lengths = [len(document) for document in lists.documents]
        rows = np.repeat(np.arange(len(lists)), lengths)
        columns = np.concatenate([np.arange(length) for length in lengths])
        logits = torch.full((len(lists), max(lengths)), float("-inf"), device=device)
        cosines = (queries @ documents.T)[torch.from_numpy(rows), torch.from_numpy(where)]
        logits[torch.from_numpy(rows), torch.from_numpy(columns)] = cosines / TEMPERATURE
        logs = torch.log_softmax(logits, dim=1)[torch.from_numpy(rows), torch.from_numpy(columns)]
        targets = torch.from_numpy(np.concatenate(lists.targets).astype(np.float32)).to(device)
        return -(targets * logs).sum() / len(lists)


@dataclass(frozen=True, slots=True)
class Adapters:
    """What a training came to."""

    heads: Mapping[Role, Head]
    course: TrainingProgress
    taught: Mapping[Teacher, int]


def fit_adapters(
    pools: Pools,
    targets: Sequence[TeacherTarget],
    *,
    loop: LoopOptions,
    report: ReportTraining = lambda *_: None,
    both: bool = False,
    max_share: float = MAX_SHARE,
) -> Adapters:
    """Train on queries' pools, without those that nobody says anything about; a random fifth ends the training.

    With `both` documents get an adapter too. :func:`bounded` explains `max_share`.
    """
    lists, documents, chosen = lists_of(pools, targets)
    lists = bounded(lists, [targets[number].teacher != "clicks" for number in chosen], max_share)
    first, last = held_out_places(len(lists), loop.seed)
    torch.manual_seed(loop.seed)
    recipe = ListwiseRecipe(documents, lists.part(first), lists.part(last), both=both)
    course = train(recipe, loop, report=report)
    taught = Counter(teacher for number in chosen if (teacher := targets[number].teacher) is not None)
    return Adapters(recipe.heads(), course, taught)


def bounded(lists: Lists, trusted: Sequence[bool], max_share: float) -> Lists:
    """Scale targets down so that no document has more than a share of all of them: a log may contain an attacker's.

    The share is of the number of lists, 1 for no bound; trusted lists, not taught by clicks, neither count nor are
    scaled.
    """
    totals: dict[int, float] = defaultdict(float)
    for documents, shares, sure in zip(lists.documents, lists.targets, trusted, strict=True):
        for document, share in zip(documents.tolist(), shares.tolist(), strict=True):
            totals[document] += 0.0 if sure else share
    most = max_share * len(lists)
    targets = [
        shares if sure else shares * [min(1.0, most / max(totals[one], most)) for one in documents.tolist()]
        for documents, shares, sure in zip(lists.documents, lists.targets, trusted, strict=True)
    ]
    return replace(lists, targets=targets)


def lists_of(pools: Pools, targets: Sequence[TeacherTarget]) -> tuple[Lists, Float32, list[int]]:
    """Return what can be learned from: lists, the distinct documents' vectors ``(n, d)``, the pools that it is of."""
    places: dict[str, int] = {}
    rows: list[Float32] = []
    queries, listed, shares, chosen = [], [], [], []
    for number, (pool, target) in enumerate(zip(pools.pools, targets, strict=True)):
        held = [place for place, vector in enumerate(pool.vectors) if vector is not None]
        total = float(target.shares[held].sum()) if len(held) > 1 else 0.0
        if not total or pool.query_vector is None:
            continue
        for place in held:
            if pool.documents[place] not in places:
                places[pool.documents[place]] = len(rows)
                rows.append(np.asarray(pool.vectors[place]))
        chosen.append(number)
        queries.append(pool.query_vector)
        listed.append(np.array([places[pool.documents[place]] for place in held], np.intp))
        shares.append(target.shares[held] / total)
    return Lists(np.array(queries), listed, shares), np.array(rows), chosen
