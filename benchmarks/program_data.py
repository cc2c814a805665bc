"""The collections of the programs' benchmark: small enough for sentence encodings on two processors."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from es_ttc.evaluation.datasets import Collection, load_collection

SEED = 2026
DATA = Path(__file__).parents[2] / "shared" / "data"

SIZES: dict[str, tuple[int | None, int | None]] = {
    "limit-small": (200, None),
    "toollens": (200, None),
    "hotpotqa-train-hipporag": (None, None),
    "cranfield": (100, 600),
    "scifact": (150, 600),
    "npl-vaswani": (None, 3000),
    "qmsum-meetings": (60, 40),
}
"""Queries and documents kept of each collection; None keeps all."""


def load(name: str, split: str = "test", sizes: tuple[int | None, int | None] | None = None) -> Collection:
    """Return a collection, cut down where :data:`SIZES` says so."""
    collection = load_collection(DATA / name, split)
    queries, documents = sizes or SIZES[name]
    return subset(collection, queries, documents)


def subset(collection: Collection, queries: int | None, documents: int | None) -> Collection:
    """Return a seeded sample: some queries, all documents judged for them, others up to the number wanted."""
    chosen = _sample(list(collection.queries), queries)
    judged = {document for query in chosen for document in collection.qrels[query]}
    others = [document.id for document in collection.documents if document.id not in judged]
    kept = judged | set(others if documents is None else _sample(others, max(0, documents - len(judged))))
    return replace(
        collection,
        documents=tuple(document for document in collection.documents if document.id in kept),
        queries={query: collection.queries[query] for query in chosen},
        qrels={query: collection.qrels[query] for query in chosen},
    )


def _sample(ids: Sequence[str], size: int | None) -> list[str]:
    if size is None or size >= len(ids):
        return list(ids)
    kept = set(random.Random(SEED).sample(sorted(ids), size))
    return [one for one in ids if one in kept]
