"""COLT (Qu et al., CIKM 2024), a baseline of NNN decoding (its appendix B.4), after its published code.

Queries, documents and *scenes* (the sets of documents that are relevant to a query) form three bipartite graphs. Every
train query and every document has a vector of its own, initially the dense encoder's. Graph convolution makes documents
of the same queries similar, in a view of documents and in a view of scenes, and a contrastive loss aligns both views.
Retrieval is still the inner product of a new query's dense vector with the documents' vectors.

The settings that the comparison does not state are from its published configuration for ToolLens.
"""

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from es_ttc.encoders.base import Role
from es_ttc.encoders.heads import Head, VectorTable
from es_ttc.lab.training.data import Places, TrainingTask
from es_ttc.lab.training.losses import cross_view, listwise_multi_label
from es_ttc.lab.training.measures import measure_encoder
from es_ttc.lab.training.options import ColtOptions
from es_ttc.lab.training.sides import Trainable

Edges = NDArray[np.intp]


class DocumentVectors(nn.Module):
    """Vectors of train queries and documents."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.from_numpy(task.train.vectors.copy()))
        self.documents = nn.Parameter(torch.from_numpy(task.documents.copy()))


class ColtRecipe(Trainable):
    """Trains vectors of documents together with those of their train queries."""

    def __init__(self, task: TrainingTask, options: ColtOptions) -> None:
        self._task = task
        self._options = options
        self._vectors = DocumentVectors(task)
        self.learned: nn.Module = self._vectors
        self.examples = len(task.train)
        sets = [tuple(one.tolist()) for one in task.train.relevant]
        scenes = {found: number for number, found in enumerate(dict.fromkeys(sets))}
        self._scene_of = np.array([scenes[found] for found in sets], np.intp)
        self._asked = _edges(enumerate(task.train.relevant))
        self._in_scene = np.stack([np.arange(len(sets)), self._scene_of])
        self._members = _edges((number, np.array(found, np.intp)) for found, number in scenes.items())
        self._sizes = (len(sets), len(scenes), len(task.documents))
        self._graphs = self._drawn(None)
        self._initial_scenes = torch.sparse.mm(self._graphs[2], torch.from_numpy(task.documents))
        self._valid = torch.from_numpy(task.valid.vectors)
        self._wanted = task.valid.mask(len(task.documents))

    def begin_epoch(self, random: np.random.Generator) -> None:
        """Draw the edges of this epoch."""
        self._graphs = self._drawn(random)

    def loss(self, batch: Places, random: np.random.Generator) -> Tensor:
        """Return the list-wise loss of some queries, and the contrastive loss of their views."""
        # Sparse products exist in full precision only.
        with torch.autocast(self._vectors.documents.device.type, enabled=False):
            return self._loss(batch, random)

    def _loss(self, batch: Places, random: np.random.Generator) -> Tensor:
        options = self._options
        by_document, by_scene, documents, scenes, scenes_alone = self._propagated(self._graphs)
        listed, labels = self._lists(batch, random)
        device = documents.device
        queries = torch.from_numpy(batch).to(device)
        shown = F.normalize(documents, dim=1)[listed.to(device)]
        scores = sum(
            torch.einsum("bd,bkd->bk", F.normalize(view[queries], dim=1), shown) for view in (by_document, by_scene)
        )
        assert isinstance(scores, Tensor)  # noqa: S101 - two views
        chosen = torch.from_numpy(self._scene_of[batch]).to(device)
        contrast = cross_view(by_document[queries], by_scene[queries], options.temperature)
        contrast = contrast + cross_view(scenes[chosen], scenes_alone[chosen], options.temperature)
        return listwise_multi_label(scores, labels.to(device)) + options.balance * contrast / 2

    def validate(self) -> float:
        """Return the mean measure of the validation queries, whose dense vectors are in no graph."""
        scores = self._valid @ self._final().cpu().T
        return float(measure_encoder(self._options.metric, scores, self._wanted).mean())

    def heads(self) -> dict[Role, Head]:
        """Return the heads for serving: no change for queries, the table for documents."""
        learned = self._final().detach().cpu().numpy()
        return {"query": Head(), "document": Head((VectorTable(self._task.documents, learned),))}

    def _final(self) -> Tensor:
        return F.normalize(self._propagated(self._drawn(None))[2], dim=1)

    def _propagated(self, graphs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return queries from documents and from scenes, documents, and scenes from documents and from queries."""
        by_query, in_scene, members = graphs
        vectors = self._vectors
        by_document, documents = self._convolved(by_query, vectors.queries, vectors.documents)
        scenes = self._scenes(members)
        by_scene, scenes_alone = self._convolved(in_scene, vectors.queries, scenes)
        return by_document, by_scene, documents, torch.sparse.mm(members, documents), scenes_alone

    def _scenes(self, members: Tensor) -> Tensor:
        if self._options.scenes == "initial":
            initial: Tensor = self._initial_scenes.to(self._vectors.documents.device)
            return initial
        means: Tensor = torch.sparse.mm(members, self._vectors.documents)
        return means

    def _convolved(self, graph: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Add to both sides of a graph their neighbours' vectors, layer by layer, each normalised."""
        total, totals = one, other
        for layer in range(self._options.layers):
            one, other = torch.sparse.mm(graph, other), torch.sparse.mm(graph.t(), one)
            one, other = one / (layer + 2), other / (layer + 2)
            total, totals = total + F.normalize(one, dim=1), totals + F.normalize(other, dim=1)
        return total, totals

    def _drawn(self, random: np.random.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three graphs, with some edges left out: two by degrees' roots, scenes' members by their number."""
        queries, scenes, documents = self._sizes
        return (
            _graph(self._kept(self._asked, random), (queries, documents)),
            _graph(self._kept(self._in_scene, random), (queries, scenes)),
            _mean(self._kept(self._members, random), (scenes, documents)),
        )

    def _kept(self, edges: Edges, random: np.random.Generator | None) -> Edges:
        return edges if random is None else edges[:, random.random(edges.shape[1]) >= self._options.dropped]

    def _lists(self, batch: Places, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return each query's list, the relevant documents first, and its labels, ``(b, k)`` both."""
        relevant = self._task.train.mask(self._sizes[2], batch).numpy()
        length = min(self._sizes[2], max(self._options.listed, int(relevant.sum(axis=1).max()) + 1))
        order = random.random(relevant.shape)
        order[relevant] -= 1
        listed = np.argpartition(order, length - 1, axis=1)[:, :length]
        labels = np.take_along_axis(relevant, listed, axis=1).astype(np.float32)
        return torch.from_numpy(listed), torch.from_numpy(labels)


def _edges(neighbours: Iterable[tuple[int, Places]]) -> Edges:
    """Return edges from numbered lists of neighbours, ``(2, e)``."""
    pairs = [np.stack([np.full(len(found), number), found]) for number, found in neighbours]
    return np.concatenate(pairs, axis=1)


def _graph(edges: Edges, shape: tuple[int, int]) -> Tensor:
    """Return a bipartite graph's normalised adjacency: 1 / sqrt(degree of one end, degree of the other)."""
    roots = [np.sqrt(np.maximum(np.bincount(ends, minlength=size), 1)) for ends, size in zip(edges, shape, strict=True)]
    return _sparse(edges, 1 / (roots[0][edges[0]] * roots[1][edges[1]]), shape)


def _mean(edges: Edges, shape: tuple[int, int]) -> Tensor:
    """Return the matrix that averages each row's neighbours."""
    counts = np.maximum(np.bincount(edges[0], minlength=shape[0]), 1)
    return _sparse(edges, 1 / counts[edges[0]], shape)


def _sparse(edges: Edges, weights: NDArray[np.float64], shape: tuple[int, int]) -> Tensor:
    values = torch.from_numpy(weights.astype(np.float32))
    return torch.sparse_coo_tensor(torch.from_numpy(edges), values, shape, check_invariants=False).coalesce()
