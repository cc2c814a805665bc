"""From pools and what teachers say to adapters."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from es_ttc.encoders.base import Role
from es_ttc.encoders.heads import Head
from es_ttc.lab.learning.listwise import Lists, ListwiseRecipe
from es_ttc.lab.learning.teachers import TEACHERS, Target, Teacher, targets
from es_ttc.lab.ranking.pools import Pools
from es_ttc.lab.training.data import held_out_places
from es_ttc.lab.training.loop import Report, TrainingProgress, train
from es_ttc.lab.training.options import LoopOptions
from es_ttc.vectors.tokens import Float32

MIN_QUERIES = 20
"""With fewer queries nothing is learned: a fifth of them is too few to end the training by."""


def loop_options(seed: int = 0) -> LoopOptions:
    """Return the options of the training loop; docs/results/learning.md says how they were chosen."""
    return LoopOptions(epochs=30, batch=64, learning_rate=3e-4, patience=3, seed=seed)


@dataclass(frozen=True, slots=True)
class Adapters:
    """What a training came to."""

    heads: Mapping[Role, Head]
    course: TrainingProgress
    taught: Mapping[Teacher, int]


def fit_adapters(
    pools: Pools,
    *,
    clicks: Mapping[str, Mapping[str, float]] | None = None,
    allowed: Sequence[Teacher] = TEACHERS,
    loop: LoopOptions,
    report: Report | None = None,
) -> Adapters:
    """Train adapters on queries' pools; a random fifth of the queries ends the training.

    Args:
        pools: The pools, with blend's signals and the vectors.
        clicks: By query id and document, weighted clicks.
        allowed: The teachers that may be asked.
        loop: Options of the loop.
        report: Told of each step.
    """
    lists, documents, chosen = lists_of(pools, shares := targets(pools, clicks or {}, allowed=allowed))
    first, last = held_out_places(len(lists), loop.seed)
    torch.manual_seed(loop.seed)
    recipe = ListwiseRecipe(documents, lists.part(first), lists.part(last))
    course = train(recipe, loop, report=report)
    taught = Counter(teacher for number in chosen if (teacher := shares[number].teacher) is not None)
    return Adapters(recipe.heads(), course, taught)


def lists_of(pools: Pools, given_targets: Sequence[Target]) -> tuple[Lists, Float32, list[int]]:
    """Return what can be learned from: lists, the distinct documents' vectors ``(n, d)``, the pools that it is of."""
    places: dict[str, int] = {}
    rows: list[Float32] = []
    queries, listed, given, chosen = [], [], [], []
    for number, (pool, target) in enumerate(zip(pools.pools, given_targets, strict=True)):
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
        given.append(target.shares[held] / total)
    return Lists(np.array(queries), listed, given), np.array(rows), chosen
