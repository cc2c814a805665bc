"""Learning to rank: LambdaMART over blend's signals and numeric fields, fitted by LightGBM; its trees as plain arrays.

The trees begin from blend's mean: where judgements are few they change little, and the ranking stays near the default
(Burges, *From RankNet to LambdaRank to LambdaMART*, 2010; the start is LightGBM's ``init_score``).
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.evaluation.bootstrap import SEED, Comparison
from es_ttc.lab.evaluation.rankings import ReportStage, silent
from es_ttc.lab.evaluation.tuning import compared, fold_of
from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.lab.ranking.weights import measure_weights, values_of_default
from es_ttc.rescorers.blend.signals import SignalName
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.rescorers.learned.fields import NumericField, field_columns
from es_ttc.rescorers.learned.scores import learned_scores, model_features, start_of, tree_rows
from es_ttc.rescorers.learned.trees import Missing, Trees
from es_ttc.vectors.tokens import Float32, Float64

if TYPE_CHECKING:
    from lightgbm import Booster

_MAX_DOCUMENTS = 10_000  # documents of one query that LightGBM takes
_MISSING = {"None": Missing.NONE, "Zero": Missing.ZERO, "NaN": Missing.NAN}


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How trees are fitted; the defaults were looked at on training queries."""

    trees: int = 50
    leaves: int = 7
    learning_rate: float = 0.05
    least: int = 50
    blend: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RankTraining:
    """A model's trees and what they gain: ``(q,)`` values under blend's defaults, and under trees of the other folds.

    `gains` is the share of each signal and ``field NAME`` in what the splits gain.
    """

    metric: str
    trees: Trees
    default: Float64
    reached: Float64
    against_default: Comparison
    gains: Mapping[str, float]

    @property
    def clear(self) -> bool:
        """Whether the cross-fitted gain over the default is clear: its interval lies above 0."""
        return self.against_default.interval.low > 0


def train_trees(
    pools: Pools,
    metric: str,
    *,
    folds: int,
    names: Sequence[SignalName] = DEFAULT_SIGNALS,
    fields: Sequence[NumericField] = (),
    options: RankOptions | None = None,
    seed: int = SEED,
    progress: ReportStage = silent,
) -> RankTraining:
    """Fit trees to all queries, and measure them cross-fitted."""
    options = options or RankOptions()
    fold = fold_of(len(pools), folds, seed)
    default = values_of_default(pools, metric)
    pools = pools.of(names)
    reached = np.zeros(len(pools))
    for one in range(folds):
        trees, _ = fit_trees(pools.some(np.flatnonzero(fold != one)), options, fields)
        held_out = np.flatnonzero(fold == one)
        reached[held_out] = values_of_trees(pools.some(held_out), trees, options.blend, metric, fields)
        progress("trees", one + 1, folds + 1)
    trees, gains = fit_trees(pools, options, fields)
    progress("trees", folds + 1, folds + 1)
    return RankTraining(metric, trees, default, reached, compared(reached, default, seed), gains)


def require_lightgbm() -> None:
    """Refuse to begin without LightGBM."""
    if importlib.util.find_spec("lightgbm") is None:
        raise ConfigurationError("learning to rank needs LightGBM: pip install 'es-ttc[ltr]'")


def values_of_trees(
    pools: Pools, trees: Trees, blend: float, metric: str, fields: Sequence[NumericField] = ()
) -> Float64:
    """Return a metric of each query under a model, ``(q,)``."""
    scores = np.zeros((len(pools), max(len(pool.documents) for pool in pools.pools)), np.float32)
    for row, pool, weights in zip(scores, pools.pools, pools.default_weights(), strict=True):
        columns = field_columns(fields, pool.numbers, len(pool.documents))
        row[: len(pool.documents)] = learned_scores(_features(pools, pool), columns, weights, blend, trees)
    return measure_weights(pools, metric)(scores)


def _features(pools: Pools, pool: Pool) -> Float32:
    return model_features(pools.signals, pool.scores, few_words=pool.trust.few_words)


def fit_trees(
    pools: Pools, options: RankOptions, fields: Sequence[NumericField] = ()
) -> tuple[Trees, dict[str, float]]:
    """Fit trees, and return them with the share of each signal and field in what the splits gain."""
    require_lightgbm()
    import lightgbm

    some = pools.some(
        [place for place, pool in enumerate(pools.pools) if len(pool.documents) > 1 and pool.grades.max() > 0]
    )
    useful = some.pools
    if not useful:
        raise InvalidRequest("no query has a relevant document among its candidates: there is nothing to learn from")
    longest = max(len(pool.documents) for pool in useful)
    if longest > _MAX_DOCUMENTS:
        raise InvalidRequest(f"a query has {longest:,} candidates, and LightGBM takes {_MAX_DOCUMENTS:,}: see --window")
    features = [_features(pools, pool) for pool in useful]
    starts = [options.blend * start_of(*pair) for pair in zip(features, some.default_weights(), strict=True)]
    grades = np.concatenate([np.maximum(pool.grades, 0) for pool in useful])
    columns = [field_columns(fields, pool.numbers, len(pool.documents)) for pool in useful]
    rows = [tree_rows(*pair) for pair in zip(features, columns, strict=True)]
    names = [*pools.signals, *(f"field {field.name}" for field in fields)]
    data = lightgbm.Dataset(
        np.concatenate(rows).astype(np.float64),
        grades,
        group=[len(pool.documents) for pool in useful],
        init_score=np.concatenate(starts),
        feature_name=[f"feature{place}" for place in range(len(names))],
    )
    params = {
        "objective": "lambdarank",
        "num_leaves": options.leaves,
        "learning_rate": options.learning_rate,
        "min_data_in_leaf": options.least,
        "lambdarank_truncation_level": 20,
        "label_gain": list(range(int(grades.max()) + 1)),  # nDCG's gains are linear here
        "seed": options.seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbose": -1,
    }
    booster = lightgbm.train(params, data, options.trees)
    gains = booster.feature_importance("gain")
    shares = gains / max(gains.sum(), 1e-12)
    return exported(booster), {name: float(share) for name, share in zip(names, shares, strict=True)}


def exported(booster: "Booster") -> Trees:
    """Return a booster's trees as arrays, each node before its children; all splits must be numerical."""
    nodes: list[Mapping[str, Any]] = []
    children: list[list[int]] = []
    values: list[float] = []

    def add(node: Mapping[str, Any]) -> int:
        """Append a node and what stands below it, and return its place; that of a leaf's value is negative."""
        if "split_feature" not in node:
            values.append(float(node["leaf_value"]))
            return ~(len(values) - 1)
        if node["decision_type"] != "<=":
            raise ValueError(f"only numerical splits can be exported, not [{node['decision_type']}]")
        place = len(nodes)
        nodes.append(node)
        children.append([])
        children[place] = [add(node[side]) for side in ("left_child", "right_child")]
        return place

    roots = [add(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]]
    sides = np.array(children, np.int32).reshape(-1, 2)
    return Trees(
        roots=np.array(roots, np.int32),
        feature=np.array([node["split_feature"] for node in nodes], np.int32),
        threshold=np.array([node["threshold"] for node in nodes], np.float64),
        left=sides[:, 0].copy(),
        right=sides[:, 1].copy(),
        missing=np.array([_MISSING[node["missing_type"]] for node in nodes], np.int32),
        default_left=np.array([node["default_left"] for node in nodes], np.bool_),
        values=np.array(values, np.float64),
    )
