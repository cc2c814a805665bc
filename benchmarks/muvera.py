"""Fixed dimensional encodings (MUVERA) as candidates: one vector a document that stands for all its token vectors.

    python -m benchmarks.muvera
    python -m benchmarks.muvera --data ../shared/data/cranfield --queries 50

Each way of finding 100 documents is compared by how many of the best documents of exact late interaction it finds, by
nDCG@10 of late interaction over what it finds, and by nDCG@10 of blend over BM25's 100 documents joined by these. Every
search is exact: what an approximate index loses comes on top. Bytes are those of float32 vectors.

Dhulipala et al., "MUVERA: Multi-Vector Retrieval via Fixed Dimensional Encodings", NeurIPS 2024, section 2: tokens are
put in ``2^k`` cells by ``k`` random planes; a query has the sum of a cell's tokens, a document their mean, or the token
of the nearest cell where it has none; every cell is projected to ``p`` components, and all this is repeated ``r``
times. A count sketch brings the whole to its final size.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.blend import DATA, MAX_TOKENS, METRIC, blended, collections, first_queries, prepared
from benchmarks.common import heading, table
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.features import CorpusFeatures, encode_corpus, encode_queries
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.rescorers.base import Feature, Query
from es_ttc.rescorers.blend.signals import all_signal_scores, part_of, read_by
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32

FOLDERS = ("toollens", "qmsum-meetings", "hotpotqa-train-hipporag", "cranfield", "npl-vaswani", "scifact")
FOUND = 100
GRID = SpanGrid(scale=10, stride=5)
SEED = 7


@dataclass(frozen=True, slots=True)
class Size:
    """Parameters of an encoding.

    Attributes:
        repetitions: r.
        planes: k; ``2^k`` cells.
        components: p, of one cell.
        final: Components in all, by a count sketch; None to keep all.
        centred: Whether cells are cut through the tokens' mean instead of the origin.
    """

    repetitions: int
    planes: int
    components: int
    final: int | None = None
    centred: bool = False

    @property
    def unsketched(self) -> int:
        """Components before the count sketch."""
        return self.repetitions * (1 << self.planes) * self.components

    def __str__(self) -> str:
        cut = ", cells through the mean" if self.centred else ""
        sketch = f", sketched from {self.unsketched:,}" if self.final else ""
        parts = f"r {self.repetitions}, k {self.planes}, p {self.components}"
        return f"MUVERA {self.final or self.unsketched:,} ({parts}{sketch}{cut})"


SIZES = (
    Size(20, 3, 8),
    Size(20, 5, 16, 1024),
    Size(20, 5, 16, 2048),
    Size(20, 5, 16, 4096),
    Size(20, 5, 16, 4096, centred=True),
    Size(20, 5, 16, centred=True),
)


class FixedDimensionalEncoding:
    """Encodes token vectors as one vector whose inner product approximates late interaction.

    Args:
        size: Its parameters.
        mean: ``(d,)`` mean of the tokens.
    """

    def __init__(self, size: Size, mean: Float32) -> None:
        rng = np.random.default_rng(SEED)
        dims = len(mean)
        self._size = size
        self._planes = rng.standard_normal((dims, size.repetitions * size.planes), np.float32)
        self._signs = rng.choice(np.array([-1, 1], np.float32), (dims, size.repetitions * size.components))
        self._signs /= np.sqrt(np.float32(size.components))
        self._threshold = mean @ self._planes if size.centred else np.zeros(self._planes.shape[1], np.float32)
        self._places = rng.integers(0, size.final or 1, size.unsketched)
        self._sketch = rng.choice(np.array([-1, 1], np.float32), size.unsketched)

    def query(self, tokens: Float32) -> Float32:
        """Return the encoding of a query's unit token vectors ``(n, d)``."""
        return self._sketched(self._cells(tokens, document=False))

    def document(self, tokens: Float32) -> Float32:
        """Return the encoding of a document's unit token vectors ``(n, d)``."""
        return self._sketched(self._cells(tokens, document=True))

    def _cells(self, tokens: Float32, *, document: bool) -> Float32:
        size, count = self._size, len(tokens)
        if not count:
            return np.zeros(size.unsketched, np.float32)
        bits = (tokens @ self._planes > self._threshold).reshape(count, size.repetitions, size.planes)
        cells = bits @ (1 << np.arange(size.planes))
        projected = (tokens @ self._signs).reshape(count, size.repetitions, size.components)
        out = np.zeros((size.repetitions, 2**size.planes, size.components), np.float32)
        for repetition in range(size.repetitions):
            of = cells[:, repetition]
            np.add.at(out[repetition], of, projected[:, repetition])
            if document:
                held = np.bincount(of, minlength=2**size.planes)
                out[repetition, held > 0] /= held[held > 0, None]
                empty = np.flatnonzero(held == 0)
                nearest = np.bitwise_count(empty[:, None] ^ of[None, :]).argmin(axis=1)
                out[repetition, empty] = projected[nearest, repetition]
        return out.reshape(-1)

    def _sketched(self, encoding: Float32) -> Float32:
        if self._size.final is None:
            return encoding
        weights = encoding * self._sketch
        return np.bincount(self._places, weights, self._size.final).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Found:
    """What one way of finding documents gives, and what it costs.

    Attributes:
        scores: ``(queries, documents)``.
        bytes: Bytes of its vectors for a document, on average.
        document_ms: Time to make a document's vectors from its token vectors.
        search_ms: Time of an exact search.
    """

    scores: Float32
    bytes: float
    document_ms: float
    search_ms: float


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[DATA / name for name in FOLDERS])
    parser.add_argument("--queries", type=int, default=100, help="queries of a collection, drawn at random")
    parser.add_argument("--encoder", default="minilm@onnx")
    arguments = parser.parse_args()
    encoder = prepared(arguments.encoder)
    rows: list[list[object]] = []
    for collection in collections(arguments.data, "test", generated=False):
        rows += measured(first_queries(collection, arguments.queries), encoder)
    described = f"test queries, up to {arguments.queries} of each collection; nothing is tuned"
    print(heading(f"Fixed dimensional encodings, {encoder.identity.model}", data=described))
    columns = ["collection", "100 documents by", "best 10 found", "best 100 found", "nDCG@10, late interaction"]
    columns += ["nDCG@10, blend with BM25's", "KiB a document", "ms to encode one", "ms a search"]
    print(table(columns, rows))


def measured(collection: Collection, encoder: Encoder) -> list[list[object]]:
    """Return the rows of one collection."""
    fields = ("title", "text")
    spec = IndexSpec(encoder.identity, text_fields=fields, codec="int8", max_tokens=MAX_TOKENS, spans=(GRID,))
    features = encode_corpus(collection.documents, spec, encoder)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=True)
    words = Bm25([compose(document.source, fields)[0] for document in collection.documents])
    lexical = np.stack([words.scores(query.text) for query in queries])
    everything = np.flatnonzero(features.present)
    needs = read_by(DEFAULT_SIGNALS) | {Feature.NORMS}
    whole = features.window(everything, np.zeros(len(everything), np.float32), needs)
    signals = [all_signal_scores(DEFAULT_SIGNALS, query, whole) for query in queries]
    late = np.full((len(queries), len(features.ids)), -2, np.float32)
    late[:, everything] = [one["late_interaction"].scores for one in signals]
    ways = {"exact late interaction": Found(late, 0, 0, 0), **searches(features, queries, lexical)}
    judged = {name: collection.qrels[name] for name in collection.queries}
    rows: list[list[object]] = []
    for way, found in ways.items():
        rankings: dict[str, dict[str, list[str]]] = {"late": {}, "blend": {}}
        shares: dict[int, list[float]] = {10: [], FOUND: []}
        for place, name in enumerate(collection.queries):
            documents = best(found.scores[place], features.present, FOUND)
            for count, shared in shares.items():
                wanted = best(late[place], features.present, count)
                shared.append(len(np.intersect1d(documents, wanted)) / len(wanted))
            rankings["late"][name] = ids(features, documents, late[place, documents])
            by_words = best(lexical[place], features.present & (lexical[place] > 0), FOUND)
            union = np.union1d(by_words, documents)
            known = np.isin(everything, union)
            part = part_of(whole, known)
            trust = Trust(
                Trust.of(features.window(by_words, lexical[place, by_words], frozenset())).words, Trust.of(part).vectors
            )
            first_pass = np.where(np.isin(everything, by_words), lexical[place, everything], 0)[known]
            total = blended(signals[place], first_pass.astype(np.float32), known, trust)
            rankings["blend"][name] = ids(features, everything[known], total)
        values = {name: float(score_by(METRIC, judged, ranked).mean()) for name, ranked in rankings.items()}
        rows.append(
            [
                collection.name,
                way,
                *(f"{np.mean(shares[count]):.3f}" for count in (10, FOUND)),
                f"{values['late']:.3f}",
                f"{values['blend']:.3f}",
                f"{found.bytes / 1024:.1f}" if found.bytes else "",
                f"{found.document_ms:.2f}" if found.document_ms else "",
                f"{found.search_ms:.2f}" if found.search_ms else "",
            ]
        )
    return rows


def searches(features: CorpusFeatures, queries: Sequence[Query], lexical: Float32) -> Mapping[str, Found]:
    """Return every way of finding documents."""
    vectors = np.stack([query.vectors[0] for query in queries])
    dims = vectors.shape[1]
    ways = {"BM25": Found(lexical, 0, 0, 0), "pooled vector": _by_vectors(features.pooled, vectors, dims * 4, 0)}
    owners = np.repeat(np.arange(len(features.spans)), [len(one) for one in features.spans])
    began = time.perf_counter()
    spans = np.full((len(queries), len(features.ids)), -2, np.float32)
    np.maximum.at(spans.T, owners, np.concatenate(features.spans) @ vectors.T)
    seconds = time.perf_counter() - began
    ways[f"spans of {GRID.scale:g} tokens"] = Found(
        spans, len(owners) * dims * 4 / len(features.ids), 0, 1000 * seconds / len(queries)
    )
    tokens = [unit(dequantise(one)) for one in features.tokens]
    mean = np.stack([one.mean(axis=0) for one in tokens if len(one)]).mean(axis=0)
    asked = [unit(query.tokens) for query in queries if query.tokens is not None]
    for size in SIZES:
        encoding = FixedDimensionalEncoding(size, mean)
        began = time.perf_counter()
        documents = np.stack([encoding.document(one) for one in tokens])
        each = 1000 * (time.perf_counter() - began) / len(tokens)
        ways[str(size)] = _by_vectors(documents, np.stack([encoding.query(one) for one in asked]), 0, each)
    return ways


def _by_vectors(documents: Float32, queries: Float32, size: int, document_ms: float) -> Found:
    began = time.perf_counter()
    scores = np.stack([documents @ query for query in queries])
    seconds = time.perf_counter() - began
    return Found(scores, size or documents.shape[1] * 4, document_ms, 1000 * seconds / len(queries))


def unit(rows: Float32) -> Float32:
    """Return rows at length 1."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    scaled: Float32 = (rows / lengths).astype(np.float32)
    return scaled


def best(scores: Float32, allowed: NDArray[np.bool_], count: int) -> NDArray[np.intp]:
    """Return the positions of the best documents, best first."""
    order = np.argsort(-np.where(allowed, scores, -np.inf), kind="stable")[:count]
    return order[allowed[order]]


def ids(features: CorpusFeatures, documents: NDArray[np.intp], scores: Float32) -> list[str]:
    """Return documents' ids, best first."""
    return [features.ids[place] for place in documents[np.argsort(-scores, kind="stable")].tolist()]


if __name__ == "__main__":
    main()
