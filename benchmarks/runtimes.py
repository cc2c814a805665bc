"""ONNX Runtime against OpenVINO: rates of the processor, agreement, memory, and nDCG@10 with each and with both.

    python -m benchmarks.runtimes speed --models minilm bge-small e5-small multilingual-e5-small colbert-small
    python -m benchmarks.runtimes ranking --models minilm

Rates are tokens a second of processor time on one thread, so other work on the machine hardly changes them; runtimes
take turns, each turn in a process of its own, and the best turn counts. Texts are pieces of SciFact of 16, 64 and 256
tokens. The reference of the cosines is torch in float32 where it has the model, else ONNX Runtime. CTranslate2 is
measured too if it is installed, with the model that torch has.

`ranking` encodes documents and queries with ONNX Runtime, then both with OpenVINO, then documents with ONNX Runtime and
queries with OpenVINO: differences to the first with 95 % intervals. The disk cache keeps the encodings of each runtime
under its name.
"""

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from tokenizers import Tokenizer

from benchmarks.blend import (
    DATA,
    MAX_QUERIES,
    METRIC,
    collections,
    compared,
    first_queries,
    prepared,
    searcher_of,
)
from benchmarks.common import heading, milliseconds, table
from benchmarks.programs import subset
from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.models import MODELS
from es_ttc.encoders.registry import model_folder
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.evaluation.methods import resolve_one
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.vectors.tokens import Float32, Float64

RUNTIMES = ("onnxruntime", "openvino")
LENGTHS = (16, 64, 256)
TEXTS, TOKENS = 50, 5000
"""Maximum number of texts of one length, and of their tokens."""
PASSES = 3
METHODS = {
    "dense": ("dense", {}),
    "spectral": ("spectral", {}),
    "late": ("maxsim", {"query": "tokens"}),
    "blend": ("blend", {}),
}
MAX_DOCUMENTS = 1500


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn of one runtime: rates by length, ms of a query, MB of the process, and pooled vectors by length."""

    rates: Sequence[float]
    query: float
    memory: float
    vectors: Sequence[Float32]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("speed", "ranking"), default="speed")
    parser.add_argument("--models", nargs="*", default=["minilm"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--queries", type=int, default=MAX_QUERIES)
    parser.add_argument("--documents", type=int, default=MAX_DOCUMENTS)
    parser.add_argument(
        "--data", type=Path, nargs="*", help="BEIR folders; all, and those of the demonstration, if none"
    )
    arguments = parser.parse_args()
    described = (
        "SciFact"
        if arguments.what == "speed"
        else f"up to {arguments.queries} queries, {arguments.documents} documents"
    )
    packages = ("numpy", "onnxruntime", "openvino", "ctranslate2", "torch")
    print(heading(f"Runtimes of ONNX files: {arguments.what}", data=described, packages=packages))
    for model in arguments.models:
        print(f"### {model}\n")
        if arguments.what == "speed":
            print(speed(model, arguments.turns), flush=True)
        else:
            print(ranking(model, arguments.data, arguments.queries, arguments.documents), flush=True)


def speed(model: str, turns: int) -> str:
    """Return the table of a model's rates."""
    on_torch = "torch" in MODELS[model].extras
    reader = load_encoder(f"{model}@onnx", threads=1)
    texts = [_texts(reader, length) for length in LENGTHS]
    measures = {runtime: partial(_measured, f"{model}@onnx:{runtime}", texts) for runtime in RUNTIMES}
    if on_torch and importlib.util.find_spec("ctranslate2"):
        measures["ctranslate2, int8"] = partial(_ctranslate2, model, texts)
    found: dict[str, list[Measured]] = {runtime: [] for runtime in measures}
    for _ in range(turns):
        for runtime, measure in measures.items():
            found[runtime].append(_in_a_process(measure))
    reference = f"{model}@torch:float32" if on_torch else f"{model}@onnx:onnxruntime"
    expected = _in_a_process(partial(_measured, reference, texts)).vectors
    best = {runtime: np.max([turn.rates for turn in each], axis=0) for runtime, each in found.items()}
    rows = []
    for runtime, each in found.items():
        agreement = [
            float(np.einsum("ij,ij->i", mine, theirs).mean())
            for mine, theirs in zip(each[0].vectors, expected, strict=True)
        ]
        rates = zip(best[runtime], best[runtime] / best["onnxruntime"], agreement, strict=True)
        cells = [f"{rate:,.0f} ({ratio:.2f}, {cosine:.4f})" for rate, ratio, cosine in rates]
        query, memory = (min(getattr(turn, part) for turn in each) for part in ("query", "memory"))
        rows.append([runtime, *cells, *(f"{value:,.1f}".replace("nan", "-") for value in (query, memory))])
    columns = [f"{length} tokens a text: rate (to ONNX Runtime's, cosine)" for length in LENGTHS]
    return table(["runtime", *columns, "a query, processor ms", "memory, MB"], rows)


def _in_a_process(measure: Callable[[], Measured]) -> Measured:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(measure).result()


def _measured(name: str, texts: Sequence[Sequence[str]]) -> Measured:
    encoder = load_encoder(name, threads=1)
    rates, vectors = [], []
    for each in texts:
        encodings = encoder.encode(each)
        seconds = _least_seconds(partial(encoder.encode, each))
        rates.append(sum(map(len, encodings.tokens)) / seconds)
        vectors.append(encodings.pooled)
    turn = iter([text[:50] for text in texts[0]] * 2)
    query, _ = milliseconds(
        lambda: encoder.encode([next(turn)], role="query", tokens=False), repeat=60, clock=time.process_time
    )
    return Measured(rates, query, psutil.Process().memory_info().rss / 1e6, vectors)


def _ctranslate2(model: str, texts: Sequence[Sequence[str]]) -> Measured:
    """Measure CTranslate2 with int8 products; its converter needs the weights for torch."""
    library = importlib.import_module("ctranslate2")
    folder = model_folder(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    with tempfile.TemporaryDirectory() as converted:
        library.converters.TransformersConverter(str(folder)).convert(converted, quantization="int8", force=True)
        encoder = library.Encoder(converted, compute_type="int8", inter_threads=1, intra_threads=1)

    def pooled(text: str) -> Float32:
        states = encoder.forward_batch([tokenizer.encode(text).ids]).last_hidden_state
        mean: Float32 = np.array(states)[0].mean(axis=0)
        return mean / np.linalg.norm(mean)

    rates, vectors = [], []
    for length, each in zip(LENGTHS, texts, strict=True):
        vectors.append(np.stack([pooled(text) for text in each]))
        rates.append(len(each) * length / _least_seconds(lambda: [pooled(text) for text in each]))  # noqa: B023
    return Measured(rates, float("nan"), float("nan"), vectors)


def _least_seconds(call: Callable[[], object]) -> float:
    """Return the least processor time of some calls."""
    seconds = []
    for _ in range(PASSES):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return min(seconds)


def _texts(encoder: Encoder, length: int) -> list[str]:
    """Return texts of exactly so many tokens, special ones included, cut from documents."""
    texts: list[str] = []
    with (DATA / "scifact" / "corpus.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"][: length * 10]
            (offsets,) = encoder.encode([text], max_tokens=length).offsets
            if len(offsets) == length:
                texts.append(text[: offsets[length - 2, 1]])
            if len(texts) == min(TEXTS, TOKENS // length):
                break
    return texts


def ranking(model: str, folders: list[Path] | None, queries: int, documents: int) -> str:
    """Return the tables of nDCG@10 of a model."""
    first, second = (prepared(f"{model}@onnx:{runtime}") for runtime in RUNTIMES)
    rows = []
    for collection in collections(folders, "test", generated=not folders):
        some = subset(first_queries(collection, queries), None, documents)
        before = _values(some, first, first)
        others = {"both": _values(some, second, second), "queries": _values(some, first, second)}
        rows.append([collection.name, len(some.queries), *(f"{values.mean():.4f}" for values in before.values())])
        for title, values in others.items():
            cells = [_difference(values[method], before[method]) for method in METHODS]
            rows.append([f"- {title} with OpenVINO", "", *cells])
        print(rows[-3:], file=sys.stderr, flush=True)
    return table(["nDCG@10", "queries", *METHODS], rows)


def _values(collection: Collection, of_documents: Encoder, of_queries: Encoder) -> dict[str, Float64]:
    """Return every method's values, query by query."""
    searcher = searcher_of(collection, of_documents, of_queries, "int4")
    judged = {query: collection.qrels[query] for query in collection.queries}
    return {
        name: score_by(METRIC, judged, searcher.rank(resolve_one(method, params)).rankings)
        for name, (method, params) in METHODS.items()
    }


def _difference(ours: Float64, theirs: Float64) -> str:
    found = compared(ours, theirs)
    return f"{found.delta:+.4f} ({found.interval.low:+.4f}..{found.interval.high:+.4f})"


if __name__ == "__main__":
    main()
