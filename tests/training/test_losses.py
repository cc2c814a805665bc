"""The losses against their formulas, written out."""

import math

import numpy as np
import pytest
import torch

from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.lab.training.losses import cross_view, info_nce, listwise_multi_label, set_loss
from es_ttc.lab.training.measures import measure_encoder


def draw(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape))


def test_info_nce_is_equation_21() -> None:
    queries, documents = (torch.nn.functional.normalize(draw(4, 3 + extra)[:, :3], dim=1) for extra in (0, 1))
    expected = 0.0
    for i in range(4):
        logits = [math.exp(float(queries[i] @ documents[j]) / 0.1) for j in range(4)]
        expected -= math.log(logits[i] / sum(logits)) / 4
    assert float(info_nce(queries, documents, 0.1)) == pytest.approx(expected)
    excluded = torch.zeros(4, 4, dtype=torch.bool)
    excluded[0, 1:] = True
    without = info_nce(queries, documents, 0.1, excluded)
    rest = torch.stack([info_nce(queries, documents, 0.1) * 4]).sum() - float(without) * 4
    assert float(rest) > 0
    assert float(cross_view(2 * queries, documents, 0.1)) == pytest.approx(expected)


@pytest.mark.parametrize("margin", [1.0, 1.5])
def test_the_set_loss_is_a_smooth_least_against_a_smooth_greatest(margin: float) -> None:
    scores, relevant = draw(2, 5), torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 1, 0]], dtype=torch.bool)
    expected = 0.0
    for row, mask in zip(scores.tolist(), relevant.tolist(), strict=True):
        inside = sum(math.exp(-x / 0.3) for x, wanted in zip(row, mask, strict=True) if wanted)
        outside = sum(math.exp(x / 0.3) for x, wanted in zip(row, mask, strict=True) if not wanted)
        expected += math.log1p(outside**margin * inside) / 2
    assert float(set_loss(scores, relevant, margin=margin, temperature=0.3)) == pytest.approx(expected)


def test_the_set_loss_goes_to_the_indicator_of_a_missing_margin() -> None:
    relevant = torch.tensor([[True, True, False, False]])
    kept, broken = torch.tensor([[0.5, 0.4, 0.3, 0.0]]), torch.tensor([[0.5, 0.4, 0.35, 0.0]])
    cold = {"margin": 1.2, "temperature": 1e-4}
    assert float(set_loss(kept, relevant, **cold)) == pytest.approx(0, abs=1e-6)
    assert float(set_loss(broken, relevant, **cold)) > 100


def test_colts_list_wise_loss() -> None:
    scores, labels = draw(2, 4), torch.tensor([[1.0, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.float64)
    predicted = torch.softmax(scores, dim=1)
    wanted = labels / labels.sum(dim=1, keepdim=True)
    expected = torch.nn.functional.binary_cross_entropy(predicted, wanted)
    assert float(listwise_multi_label(scores, labels)) == pytest.approx(float(expected))


@pytest.mark.parametrize("name", ["comp@2", "comp@5", "recall@3", "ndcg@10"])
def test_measures_are_those_of_the_evaluation(name: str) -> None:
    random = np.random.default_rng(1)
    scores, relevant = torch.from_numpy(random.random((20, 12))), torch.from_numpy(random.random((20, 12)) < 0.2)
    relevant[:, 0] = True
    qrels = {str(q): {str(d): 1 for d in np.flatnonzero(row)} for q, row in enumerate(relevant.numpy())}
    rankings = {str(q): [str(d) for d in np.argsort(-row)] for q, row in enumerate(scores.numpy())}
    np.testing.assert_allclose(measure_encoder(name, scores, relevant), score_by(name, qrels, rankings), atol=1e-6)
