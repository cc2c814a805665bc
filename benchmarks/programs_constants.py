"""The constants that the paper on programs leaves open, on SciFact's train queries: what was tried, and what it gives.

The gate of an expansion (B.7), the share up to which a word is rare (B.6), and how CoverageTriple's channels become one
score (B.4). A seeded sample of train queries and of documents; test queries are not read.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import numpy as np

from benchmarks.common import heading, table
from benchmarks.programs import encoded, load
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.features import CorpusFeatures
from es_ttc.lab.evaluation.metrics import score
from es_ttc.rescorers.base import Feature, Query
from es_ttc.rescorers.programs import rounds
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.programs.channels import Coverage
from es_ttc.rescorers.programs.feedback import softcentroid
from es_ttc.rescorers.programs.interface import PASSAGE, QUERY, Context, Program, run
from es_ttc.rescorers.programs.primitives import lexical
from es_ttc.rescorers.programs.primitives.fusion import reciprocal_rank_fusion
from es_ttc.rescorers.programs.primitives.standardise import along_documents
from es_ttc.rescorers.programs.windows import context_of
from es_ttc.settings import Settings
from es_ttc.vectors.chunks import GRANULARITIES
from es_ttc.vectors.tokens import Float32

GATES = (-1.0, 0.3, 0.5, 0.7, 0.9)
RARE = (0.005, 0.01, 0.02, 0.05, 0.1, 1.0)
FUSIONS: dict[str, Callable[[list[Float32]], Float32]] = {
    "sum of z-scores": lambda channels: np.sum([along_documents(one) for one in channels], axis=0, dtype=np.float32),
    "greatest z-score": lambda channels: np.max([along_documents(one) for one in channels], axis=0),
    "reciprocal ranks": reciprocal_rank_fusion,
    "sum of cosines": lambda channels: np.sum(channels, axis=0, dtype=np.float32),
}


@contextmanager
def constant(module: ModuleType, name: str, value: float) -> Iterator[None]:
    """Give a module's constant another value for a while."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def fused_by(fusion: Callable[[list[Float32]], Float32]) -> Program:
    """Return CoverageTriple with another way to put its channels together."""

    def program(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
        return fusion(list(Coverage(D, ctx)(Q).values()))

    return program


def ndcg(program: Program, collection: Collection, features: CorpusFeatures, queries: Sequence[Query]) -> float:
    """Return a program's mean nDCG@10."""
    known = np.flatnonzero(features.present)
    needs = frozenset({Feature.POOLED, Feature.CHUNKS})
    window = features.window(known, np.zeros(len(known), np.float32), needs)
    assert window.pooled is not None
    context = context_of(queries, window, GRANULARITIES, engine_lexical=False)
    context.views = {**context.views, (QUERY, None): window.pooled, (PASSAGE, None): window.pooled}
    scores = run(program, np.stack([query.vectors[0] for query in queries]), window.pooled, context)
    ids = [features.ids[place] for place in known.tolist()]
    rankings = {
        query: [ids[place] for place in np.argsort(-row, kind="stable")[:100]]
        for query, row in zip(collection.queries, scores, strict=True)
    }
    return float(score(collection.qrels, rankings, k=10).values["ndcg@10"].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--queries", type=int, default=80)
    parser.add_argument("--documents", type=int, default=400)
    arguments = parser.parse_args()
    settings = Settings(encoder=arguments.encoder)
    loaded = load_encoder(settings.encoder, cache_dir=settings.cache_dir)
    encoder = CachedEncoder(loaded, settings.cache_dir / "encodings")
    collection = load("scifact", "train", (arguments.queries, arguments.documents))
    features, queries = encoded(collection, encoder)

    def measured(program: Program) -> str:
        return f"{ndcg(program, collection, features, queries):.4f}"

    rows = [("softcentroid", "", measured(softcentroid))]
    for name in ("diversedualctx", "consensusrocchio"):
        for gate in GATES:
            with constant(rounds, "LEAST_AGREEMENT", gate):
                rows.append((f"{name}: gate", f"{gate:g}", measured(CATALOGUE[name].program)))
    for share in RARE:
        with constant(lexical, "RARE", share):
            rows.append(("crossroundrrf: rare up to", f"{share:g}", measured(CATALOGUE["crossroundrrf"].program)))
    rows += [("covtriple: channels by", name, measured(fused_by(fusion))) for name, fusion in FUSIONS.items()]
    data = f"scifact train, {len(queries)} queries, {len(features.ids)} documents, {arguments.encoder}"
    print(heading("Constants of programs", data=data, packages=("numpy", "sentencex")))
    print(table(("what", "value", "nDCG@10"), rows))


if __name__ == "__main__":
    main()
