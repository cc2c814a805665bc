"""Heads: what torch learns is what numpy serves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from es_ttc.encoders.heads import Head, VectorTable, unit
from es_ttc.lab.training.heads import LinearHead, LowRank, MixedMlp, ResidualMlp, whitening
from es_ttc.vectors.tokens import Float32

MODULES: dict[str, Callable[[], Any]] = {
    "mixed": lambda: MixedMlp(8, 16),
    "residual": lambda: ResidualMlp(8, 16),
    "linear": lambda: LinearHead(8),
    "low rank": lambda: LowRank(8, 3),
}


def rows(count: int = 20) -> Float32:
    return unit(np.random.default_rng(0).standard_normal((count, 8)).astype(np.float32))


@pytest.mark.parametrize("name", MODULES)
def test_the_served_layer_is_the_learned_one(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = MODULES[name]()
    with torch.no_grad():
        for weights in module.parameters():
            weights.add_(0.3 * torch.randn_like(weights))
        expected = module(torch.from_numpy(rows())).numpy()
    head = Head((module.layer(), module.layer()))
    save_file(head.arrays("query"), tmp_path / "heads.safetensors")
    read = Head.of(head.kinds, load_file(tmp_path / "heads.safetensors"), "query")
    np.testing.assert_allclose(Head(read.layers[:1])(rows()), expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(read(rows()), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_untrained_heads_change_nothing(name: str) -> None:
    np.testing.assert_allclose(Head((MODULES[name]().layer(),))(rows()), rows(), atol=1e-6)


def test_a_row_does_not_depend_on_its_company_and_a_text_without_tokens_stays_zero() -> None:
    torch.manual_seed(2)
    module = MixedMlp(8, 16)
    torch.nn.init.normal_(module.outer.weight)
    torch.nn.init.normal_(module.outer.bias)
    head = Head((module.layer(),))
    together = rows()
    together[3] = 0
    mapped = head.alone(together)
    assert not mapped[3].any()
    np.testing.assert_array_equal(mapped[4], head.alone(together[4:5])[0])
    np.testing.assert_allclose(mapped, head(together), atol=1e-6)
    assert head(together[:0]).shape == (0, 8)


def test_whitening_leaves_no_direction_greater_than_another() -> None:
    random = np.random.default_rng(3)
    sample = (random.standard_normal((4000, 5)) * [5, 3, 1, 1, 0.5] + 2).astype(np.float32)
    layer = whitening(sample, ridge=0)
    np.testing.assert_allclose(np.cov(layer(sample).T), np.eye(5), atol=0.01)
    assert np.isfinite(whitening(np.ones((4, 3), np.float32) + np.eye(4, 3, dtype=np.float32)).matrix).all()


def test_a_table_knows_its_vectors_and_leaves_others() -> None:
    known, learned = rows(4), rows(9)[5:]
    head = Head((VectorTable(known, learned),))
    nearly = unit(known + 0.005 * rows(12)[8:])  # another backend's rounding
    np.testing.assert_allclose(head(nearly), learned, atol=1e-6)
    np.testing.assert_allclose(head(rows(20)[15:]), rows(20)[15:], atol=1e-6)
