"""Update a graph after documents were added, changed or deleted, without building it again.

Singh et al., FreshDiskANN (arXiv 2105.09613): a new document is linked with its nearest documents, which link back if
it is nearer than their present neighbours. A document that loses a neighbour inherits that neighbour's neighbours.
"""

from collections.abc import Sequence

import numpy as np

from es_ttc.reranking.graph.build import GraphParams
from es_ttc.reranking.graph.nearest import NO_NEIGHBOUR, NeighbourGraph, Numbers, exact
from es_ttc.reranking.graph.prune import robust_prune
from es_ttc.vectors.tokens import Float32


def update_neighbours(
    graph: NeighbourGraph,
    # (n', d) float32, the present vectors; n' >= n, new documents at the end. The rows of deleted documents are not
    # read.
    vectors: Float32,
    *,
    written: Sequence[int] = (),
    deleted: Sequence[int] = (),
    params: GraphParams | None = None,
    # (m, k) for each written document, in the order of their numbers, the documents nearest to it; `ABSENT` where there
    # are fewer. None: they are computed here, by comparing with every other document.
    near: Numbers | None = None,
    # Numbers of the documents that written ones are offered to as neighbours, as `takers_of` returns them; written ones
    # are always offered to each other. None: all in `near`.
    takers: Numbers | None = None,
) -> tuple[NeighbourGraph, Numbers]:
    """Return the graph after a change, and the documents whose neighbours have changed.

    Numbers do not change: a deleted document keeps its row, has no neighbours and is no document's neighbour.
    """
    params = params or GraphParams()
    gone, fresh = np.unique(np.asarray(deleted, np.int32)), np.unique(np.asarray(written, np.int32))
    table = np.full((len(vectors), params.degree), NO_NEIGHBOUR, np.int32)
    table[: len(graph), : graph.table.shape[1]] = graph.table[:, : params.degree]
    before = table.copy()
    _leave(table, vectors, np.union1d(gone, fresh), params)
    living = np.ones(len(vectors), np.bool_)
    living[gone] = False
    kept = living[fresh]
    fresh = fresh[kept]
    if len(fresh):
        if near is None:
            others = np.flatnonzero(living).astype(np.int32)
            places, _ = exact(vectors[others], params.candidates, rows=np.searchsorted(others, fresh).astype(np.int32))
            near = others[places]
        else:
            near = np.where(np.isin(near, gone), NO_NEIGHBOUR, near)[kept]
        _join(table, vectors, fresh, near, params, None if takers is None else np.union1d(takers, fresh))
    changed = np.flatnonzero((table != before).any(axis=1)).astype(np.int32)
    return NeighbourGraph(table), changed


def takers_of(near: Numbers, written: Numbers, vectors: Float32, farthest: Numbers) -> Numbers:
    """Return the documents that may take a written one as neighbour; the others need not be considered.

    RobustPrune reads candidates by distance and stops when it has R. So a document with R neighbours, none of which
    occludes another, takes no document that is farther than its farthest neighbour; `farthest` has :data:`ABSENT` where
    it has fewer than R, or may lose one.
    """
    at, place = np.nonzero(near != NO_NEIGHBOUR)
    hosts = near[at, place]
    last = farthest[hosts]
    offered = np.einsum("md,md->m", vectors[hosts], vectors[written[at]])
    kept = np.einsum("md,md->m", vectors[hosts], vectors[np.where(last == NO_NEIGHBOUR, hosts, last)])
    takers: Numbers = np.unique(hosts[(last == NO_NEIGHBOUR) | (offered >= kept)])
    return takers


def _leave(table: Numbers, vectors: Float32, leaving: Numbers, params: GraphParams) -> None:
    """Remove documents from all neighbour lists; the documents that had them inherit their neighbours."""
    leaves = np.isin(table, leaving) & (table != NO_NEIGHBOUR)
    bereft = np.flatnonzero(leaves.any(axis=1)).astype(np.int32)
    bereft = bereft[~np.isin(bereft, leaving)]
    if len(bereft):
        heirs = _distinct(
            [
                np.concatenate([row[~lost], *(table[lost_one] for lost_one in row[lost])])
                for row, lost in zip(table[bereft], leaves[bereft], strict=True)
            ],
            leaving,
        )
        table[bereft] = robust_prune(vectors, bereft, heirs, params.degree, params.alpha)
    table[leaving] = NO_NEIGHBOUR


def _join(
    table: Numbers,
    vectors: Float32,
    fresh: Numbers,
    candidates: Numbers,
    params: GraphParams,
    takers: Numbers | None,
) -> None:
    """Choose the neighbours of new documents among their candidates, and offer the new documents to these."""
    table[fresh] = robust_prune(vectors, fresh, candidates, params.degree, params.alpha)
    offers: dict[int, list[int]] = {}
    if takers is not None:
        candidates = np.where(np.isin(candidates, takers), candidates, NO_NEIGHBOUR)
    for document, row in zip(fresh.tolist(), candidates.tolist(), strict=True):
        for other in row:
            if other not in (NO_NEIGHBOUR, document):
                offers.setdefault(other, []).append(document)
    hosts = np.array(sorted(offers), np.int32)
    if len(hosts):
        wider = _distinct([np.concatenate([table[host], np.array(offers[int(host)], np.int32)]) for host in hosts])
        table[hosts] = robust_prune(vectors, hosts, wider, params.degree, params.alpha)


def _distinct(rows: Sequence[Numbers], without: Numbers | None = None) -> Numbers:
    """Return rows as one table, each number once per row, without some numbers."""
    kept = [np.unique(row[row != NO_NEIGHBOUR]) for row in rows]
    if without is not None:
        kept = [row[~np.isin(row, without)] for row in kept]
    table = np.full((len(kept), max(1, max(map(len, kept)))), NO_NEIGHBOUR, np.int32)
    for place, row in enumerate(kept):
        table[place, : len(row)] = row
    return table
