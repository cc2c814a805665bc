"""COLT's graphs against matrices written out."""

from typing import Any

import numpy as np
import torch

from es_ttc.encoders.heads import unit
from es_ttc.lab.training.data import TrainingQueries, TrainingTask
from es_ttc.lab.training.losses import cross_view, listwise_multi_label
from es_ttc.lab.training.options import ColtOptions
from es_ttc.lab.training.recipes.colt import ColtRecipe
from es_ttc.vectors.tokens import Float32

RELEVANT = ([0, 1], [0, 1], [2], [1, 3])
SCENES = ([0, 1], [2], [1, 3])


def small() -> TrainingTask:
    random = np.random.default_rng(5)
    queries, documents = (unit(random.standard_normal((n, 6)).astype(np.float32)) for n in (4, 5))
    relevant = [np.array(one, np.intp) for one in RELEVANT]
    questions = TrainingQueries(["" for _ in RELEVANT], queries, relevant)
    return TrainingTask("small", documents, questions, questions)


def adjacency(sets: list[list[int]], width: int) -> Float32:
    matrix = np.zeros((len(sets), width), np.float32)
    for row, found in enumerate(sets):
        matrix[row, found] = 1
    rows, columns = matrix.sum(axis=1), np.maximum(matrix.sum(axis=0), 1)
    degrees = np.sqrt(np.outer(rows, columns)).astype(np.float32)
    scaled: Float32 = np.asarray(matrix / degrees, np.float32)
    return scaled


def test_documents_are_convolved_with_the_queries_that_ask_for_them() -> None:
    task = small()
    graph = adjacency([list(one) for one in RELEVANT], 5)
    first_queries, first = graph @ task.documents / 2, graph.T @ task.train.vectors / 2
    second = graph.T @ first_queries / 3
    expected = sum(np.asarray(one, np.float32) for one in (task.documents, _unit(first), _unit(second)))
    served = ColtRecipe(task, ColtOptions(layers=2)).heads()["document"]
    np.testing.assert_allclose(served(task.documents), _unit(expected), atol=1e-5)
    none = ColtRecipe(task, ColtOptions(layers=0)).heads()["document"]
    np.testing.assert_allclose(none(task.documents), task.documents, atol=1e-6)


def test_the_loss_is_of_both_views() -> None:
    task = small()
    recipe = ColtRecipe(task, ColtOptions(layers=1, balance=0.5, listed=5))
    batch = np.array([0, 3], np.intp)
    queries, documents = (torch.from_numpy(one) for one in (task.train.vectors, task.documents))
    asked = torch.from_numpy(adjacency([list(one) for one in RELEVANT], 5))
    in_scene = torch.from_numpy(adjacency([[0], [0], [1], [2]], 3))
    means = torch.stack([documents[one].mean(dim=0) for one in SCENES])
    normal = torch.nn.functional.normalize
    by_document, seen = queries + normal(asked @ documents / 2), documents + normal(asked.T @ queries / 2)
    by_scene, scenes = queries + normal(in_scene @ means / 2), means + normal(in_scene.T @ queries / 2)
    scores = (normal(by_document) + normal(by_scene))[[0, 3]] @ normal(seen).T
    labels = torch.tensor([[1.0, 1, 0, 0, 0], [0, 1, 0, 1, 0]])
    views = cross_view(by_document[[0, 3]], by_scene[[0, 3]], 0.1)
    views = views + cross_view(torch.stack([seen[one].mean(dim=0) for one in SCENES])[[0, 2]], scenes[[0, 2]], 0.1)
    expected = listwise_multi_label(scores, labels) + 0.5 * views / 2
    assert abs(float(recipe.loss(batch, np.random.default_rng(0)).detach()) - float(expected)) < 1e-5


def test_an_epoch_leaves_out_edges_and_serving_has_them_all() -> None:
    recipe = ColtRecipe(small(), ColtOptions(dropped=0.6))
    before = recipe.validate()
    first = float(recipe.loss(np.arange(4), np.random.default_rng(0)).detach())
    recipe.begin_epoch(np.random.default_rng(1))
    assert float(recipe.loss(np.arange(4), np.random.default_rng(0)).detach()) != first
    assert recipe.validate() == before


def _unit(rows: Any) -> Float32:
    return unit(np.asarray(rows, np.float32))


def test_scenes_keep_their_initial_vectors_or_follow_their_documents() -> None:
    recipes = {scenes: ColtRecipe(small(), ColtOptions(scenes=scenes)) for scenes in ("initial", "current")}
    losses = {}
    for scenes, recipe in recipes.items():
        before = float(recipe.loss(np.arange(4), np.random.default_rng(0)).detach())
        with torch.no_grad():
            recipe.learned.documents += torch.arange(6) / 6  # type: ignore[operator]
        losses[scenes] = before, float(recipe.loss(np.arange(4), np.random.default_rng(0)).detach())
    assert losses["initial"][0] == losses["current"][0]
    assert losses["initial"][1] != losses["current"][1]
