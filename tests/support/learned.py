"""Models learned from an index of an engine, and the scores that a gateway serves by them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.queries import matching
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.ranking.index_pools import IndexSource, collect_from_index
from es_ttc.lab.ranking.lambdamart import RankOptions, fit_trees
from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.rescorers.blend.normalise import logistic
from es_ttc.rescorers.learned.fields import NumericField, field_columns
from es_ttc.rescorers.learned.model import RankingModel
from es_ttc.rescorers.learned.scores import learned_scores, model_features
from es_ttc.settings import GatewaySettings
from tests.serving.client import search
from tests.support.gateway import gateway_to

OPTIONS = RankOptions(trees=20, least=2, learning_rate=0.3)


def judged(texts: Sequence[str], relevant: Sequence[str]) -> Collection:
    """Return queries that all have the same relevant documents."""
    queries = {f"q{place}": text for place, text in enumerate(texts)}
    return Collection("asked", "train", (), queries, {query: dict.fromkeys(relevant, 1) for query in queries})


def logged(
    engine: str, index: str, encoder: Encoder, queries: Collection, window: int, fields: Sequence[str] = ()
) -> Pools:
    """Return the pools that are logged from an index."""
    source = IndexSource(index, GatewaySettings(engine=engine), lambda _: encoder, window)
    return collect_from_index(queries, source, fields=fields)


def learned_from(pools: Pools, fields: Sequence[NumericField], folder: Path) -> RankingModel:
    """Fit a model to pools, and write it."""
    trees, gains = fit_trees(pools, OPTIONS, fields)
    assert len(trees.feature)
    assert all(gains[f"field {field.name}"] > 0 for field in fields)
    model = RankingModel("mine", pools.signals, OPTIONS.blend, trees, {}, tuple(fields))
    folder.mkdir(exist_ok=True)
    (folder / "mine.json").write_bytes(model.content())
    return model


@contextmanager
def gateway_with(models: Path, engine: str, encoder: Encoder) -> Iterator[str]:
    """Run a gateway that serves the models of a folder."""
    with gateway_to(engine, encoder, max_window=300, ranking_models=models) as url:
        yield url


def expected_scores(pool: Pool, pools: Pools, model: RankingModel) -> dict[str, float]:
    """Return the model's scores of a pool's documents, from the logged signals."""
    weights = pool.trust.weights(pools.signals)
    columns = field_columns(model.fields, pool.numbers, len(pool.documents))
    features = model_features(pools.signals, pool.scores, few_words=pool.trust.few_words)
    scores = learned_scores(features, columns, [weights[name] for name in pools.signals], model.blend, model.trees)
    return dict(zip(pool.documents, logistic(scores).tolist(), strict=True))


def require_served_as_logged(
    gateway: str, index: str, queries: Collection, pools: Pools, model: RankingModel, text_fields: Sequence[str]
) -> None:
    """Search for each query, and compare every score of window and candidates with that of the logged signals."""
    window = int(pools.settings["window"])
    for text, pool in zip(queries.queries.values(), pools.pools, strict=True):
        expected = expected_scores(pool, pools, model)
        served: dict[str, float] = {}
        for start in range(0, len(expected), window):
            section: Mapping[str, Any] = {"method": "learned", "query_text": text, "on_error": "fail"}
            reply = search(gateway, index, {
                "query": matching(text, text_fields), "from": start, "size": window,
                "rescore": {"window_size": window, "ttc": section},
            })  # fmt: skip
            assert reply.status == 200, reply.body
            served |= dict(zip(reply.ids, reply.scores, strict=True))
        assert {name: served.get(name) for name in expected} == pytest.approx(expected, abs=1e-4)
