"""Late-interaction models trained from a dense encoder on SciFact's train queries, in and out of their domain.

    nice -n 19 python -m benchmarks.training_late --seeds 3 --write

Each seed trains all-MiniLM-L6-v2 as `es-ttc train late` does; validation queries are a fifth of the train queries, and
test queries are read once. Every method ranks the same documents, BM25's first ones (--window), and only these are
encoded. What is done is kept in --out, so a run that was stopped goes on, and a later run adds seeds or collections.
--write replaces the section of docs/results/training.md.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.blend import DATA, METRIC, compared, first_queries, prepared, signals
from benchmarks.common import heading, kept, table
from es_ttc.common.files import replace_file
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.evaluation.datasets import Collection, Document, load_collection
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.lab.evaluation.rankings import top
from es_ttc.lab.evaluation.report import signed
from es_ttc.lab.training.late.session import LateRequest, run_late_training
from es_ttc.lab.training.loop import TrainingProgress
from es_ttc.lab.training.options import LateOptions, LateShape, LoopOptions
from es_ttc.settings import Settings

PAGE = Path(__file__).parents[1] / "docs" / "results" / "training.md"
BEGIN, END = "<!-- benchmarks.training_late: begin -->", "<!-- benchmarks.training_late: end -->"
LEARNED_FROM = "scifact"
TESTED_ON = (LEARNED_FROM, "cranfield", "npl-vaswani")
FROZEN = "minilm@onnx"
LATE = {"query": "tokens"}
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bm25": ("bm25", {}),
    "dense": ("blend", signals("dense")),
    "late": ("maxsim", LATE),
    "blend": ("blend", {}),
}
MAX_TOKENS = 1024


def plan(seed: int, arguments: argparse.Namespace) -> tuple[LateOptions, LoopOptions]:
    """Return how a seed trains."""
    loop = LoopOptions(
        epochs=arguments.epochs, batch=16, learning_rate=5e-5, patience=2, seed=seed, threads=torch.get_num_threads()
    )
    shape = LateShape(document_length=arguments.document_length)
    return LateOptions(shape, train_length=arguments.train_length, pool=arguments.pool, layers=arguments.layers), loop


def trained(seed: int, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train a model, and return its course."""
    options, loop = plan(seed, arguments)
    request = LateRequest(DATA / LEARNED_FROM, "minilm", folder, options, loop, resume=True)
    began, spent = time.perf_counter(), time.process_time()

    def report(where: TrainingProgress, steps: int) -> None:
        elapsed = time.perf_counter() - began
        print(f"seed {seed}: {where.epoch} {where.step}/{steps} {elapsed:.0f} s {where.step_losses[-1]:.3f} "
              f"{where.valid}", file=sys.stderr, flush=True)  # fmt: skip

    found = run_late_training(request, cache_dir=Settings().cache_dir, report=report)
    course = found.course
    return {
        "encoder": found.encoder,
        "options": asdict(options),
        "loop": asdict(loop),
        "best": course.best,
        "losses": course.losses,
        "valid": course.valid,
        "seconds": time.perf_counter() - began,
        "processor_seconds": time.process_time() - spent,
    }


def measured(name: str, encoder: Encoder, window: int, most: int) -> dict[str, list[float]]:
    """Return every method's values on a collection's test queries, query by query."""
    began = time.perf_counter()
    collection = first_queries(load_collection(DATA / name), most)
    fields = ("title", "text")
    spec = IndexSpec(encoder.identity, text_fields=fields, codec="int8", max_tokens=MAX_TOKENS)
    texts = [compose(document.source, fields)[0] for document in collection.documents]
    features = encode_corpus(_only_found(collection, texts, window), spec, encoder)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=True)
    searcher = MemorySearcher(
        collection, texts, retrieval(()), features, queries, first_pass="bm25", window=window, candidates=0
    )
    judged = {query: collection.qrels[query] for query in collection.queries}
    values = {
        method: score_by(METRIC, judged, searcher.rank(resolve_one(rescorer, params)).rankings).tolist()
        for method, (rescorer, params) in METHODS.items()
    }
    print(f"{name}, {encoder.identity.key}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return values


def _only_found(collection: Collection, texts: Sequence[str], window: int) -> list[Document]:
    """Return the documents, those without text that BM25 finds for no query: they are not encoded."""
    index = Bm25(texts)
    found = np.unique(
        np.concatenate([top(index.scores(text), window).documents for text in collection.queries.values()])
    )
    kept_places = set(found.tolist())
    return [
        one if place in kept_places else replace(one, title="", text="")
        for place, one in enumerate(collection.documents)
    ]


def main() -> None:
    """Train and measure what is missing, and print the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--collections", default=",".join(TESTED_ON))
    parser.add_argument("--window", type=int, default=20, help="BM25's first documents, which every method ranks")
    parser.add_argument("--queries", type=int, default=300, help="test queries of a collection, drawn at random")
    parser.add_argument("--layers", type=int, help="last layers of the backbone that are trained; all where none")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--train-length", type=int, default=128)
    parser.add_argument("--document-length", type=int, default=256)
    parser.add_argument("--pool", type=int, default=500, help="documents that validation queries rank")
    parser.add_argument("--out", type=Path, default=Path("reports/training_late"))
    parser.add_argument("--write", action="store_true", help="replace the section of docs/results/training.md")
    arguments = parser.parse_args()
    names = arguments.collections.split(",")
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    courses = [_course_of(seed, arguments) for seed in range(arguments.seeds)]
    runs = [_values(f"seed-{seed}", str(out / f"model-{seed}"), names, arguments) for seed in range(arguments.seeds)]
    frozen = _values("frozen", FROZEN, names, arguments)
    text = section(names, frozen, runs, courses, arguments.window, arguments.queries)
    print(text)
    if arguments.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        replace_file(PAGE, f"{before}{BEGIN}\n\n{text}\n{END}{after}".encode())


def _course_of(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a seed's course; it is trained only where it is missing."""
    out: Path = arguments.out
    return kept(out / f"course-{seed}.json", lambda: trained(seed, out / f"model-{seed}", arguments))


def _values(
    what: str, encoder: str, names: Sequence[str], arguments: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Return an encoder's values on every collection; it is loaded only where one is missing."""
    window, most = arguments.window, arguments.queries

    def one(name: str) -> dict[str, list[float]]:
        file = arguments.out / f"{what}-{name}-{window}-{most}.json"
        return kept(file, lambda: measured(name, prepared(encoder), window, most))

    return {name: one(name) for name in names}


def section(
    names: Sequence[str],
    frozen: Mapping[str, Mapping[str, Sequence[float]]],
    runs: Sequence[Mapping[str, Mapping[str, Sequence[float]]]],
    courses: Sequence[Mapping[str, Any]],
    window: int,
    most: int,
) -> str:
    """Return the section of the page."""
    packages = ("numpy", "torch", "sentence-transformers", "onnxruntime")
    parts = [
        heading("Late-interaction models", data=", ".join(names), packages=packages),
        "all-MiniLM-L6-v2, fine-tuned on SciFact's train queries as `es-ttc train late` does: "
        f"{_described(courses[0])}.\n",
        f"nDCG@10 on up to {most} test queries, means over {len(runs)} seed{'s' if len(runs) > 1 else ''}. Every "
        f"method ranks BM25's first {window} documents: `dense` by pooled vector, `late` by late interaction (`maxsim` "
        "with `query: tokens`), `blend` by all four signals.\n",
        "The frozen encoder's token vectors have 384 components and cover the whole text, in windows; the trained "
        f"model's have {courses[0]['options']['shape']['dimensions']} and end at "
        f"{courses[0]['options']['shape']['document_length']} tokens.\n",
        table(["collection", "queries", "encoder", *METHODS], _rows(names, frozen, runs)),
        "Differences of the trained model with the 95 % interval of a paired bootstrap over queries of the seeds' "
        "mean, in bold where it excludes zero:\n",
        table(["collection", *(title for title, _, _ in RIVALS)], _differences(names, frozen, runs)),
    ]
    return "\n".join(parts)


RIVALS: Sequence[tuple[str, str, tuple[str, str]]] = (
    ("late - frozen late", "late", ("frozen", "late")),
    ("late - frozen dense", "late", ("frozen", "dense")),
    ("late - bm25", "late", ("frozen", "bm25")),
    ("late - frozen blend", "late", ("frozen", "blend")),
    ("blend - frozen blend", "blend", ("frozen", "blend")),
)


def _described(course: Mapping[str, Any]) -> str:
    loop, options = course["loop"], course["options"]
    layers = options["layers"]
    trained_part = f"the projection and the last {layers} layers" if layers else "all weights"
    epochs = f"{loop['epochs']} epoch{'s' if loop['epochs'] > 1 else ''}"
    return (
        f"up to {epochs} of {trained_part}, batches of {loop['batch']}, {options['negatives']} mined "
        f"negative a query, learning rate {loop['learning_rate']}, documents cut at {options['train_length']} tokens "
        f"in training and at {options['shape']['document_length']} otherwise"
    )


def _mean(runs: Sequence[Mapping[str, Mapping[str, Sequence[float]]]], name: str, method: str) -> Any:
    return np.mean([one[name][method] for one in runs], axis=0)


def _rows(names: Sequence[str], frozen: Any, runs: Any) -> list[list[str]]:
    rows = []
    for name in names:
        for encoder, held in (("minilm, frozen", [frozen]), ("trained on SciFact", runs)):
            count = str(len(frozen[name]["bm25"]))
            rows.append([name, count, encoder, *(f"{_mean(held, name, method).mean():.3f}" for method in METHODS)])
    return rows


def _differences(names: Sequence[str], frozen: Any, runs: Any) -> list[list[str]]:
    rows = []
    for name in names:
        cells = []
        for _, method, (whose, rival) in RIVALS:
            theirs = _mean([frozen] if whose == "frozen" else runs, name, rival)
            one = compared(_mean(runs, name, method), theirs)
            clear = "**" if one.interval.low > 0 or one.interval.high < 0 else ""
            around = f"{signed(one.interval.low)} to {signed(one.interval.high)}"
            cells.append(f"{clear}{signed(one.delta)}{clear} ({around})")
        rows.append([name, *cells])
    return rows


if __name__ == "__main__":
    main()
