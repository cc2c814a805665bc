"""Table IV of Spectral Retrieval (arXiv 2605.24764) on LIMIT-small, in memory and through a running engine.

    python -m benchmarks.table_iv --engine http://127.0.0.1:9200
    python -m benchmarks.table_iv --engine memory --encoders mpnet@torch:float32

The paper's Success@k counts queries with both relevant documents in the top k (its random rate, 1/1035, is one pair of
46 documents), which is comp@k here. MaxSim is not in the paper's table: it stands beside every spectral figure.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import heading, table
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.lab.evaluation.datasets import Collection, load_collection
from es_ttc.lab.evaluation.methods import resolve
from es_ttc.lab.evaluation.plan import EvaluationPlan, run_plan
from es_ttc.lab.evaluation.results import CollectionResult
from es_ttc.serving.logs import configure_logs
from es_ttc.settings import EngineSettings, Settings

DATA = Path(__file__).parents[2] / "shared" / "data" / "limit-small"
PAPER = {  # all-mpnet-base-v2: metric -> (MeanCos, Spectral)
    "recall@1": (0.044, 0.356),
    "recall@2": (0.078, 0.651),
    "recall@5": (0.181, 0.816),
    "recall@10": (0.329, 0.899),
    "recall@20": (0.565, 0.953),
    "comp@2": (0.005, 0.506),
    "comp@5": (0.036, 0.731),
    "comp@10": (0.124, 0.836),
    "mrr": (0.219, 0.794),
    "map": (0.166, 0.734),
    "ndcg@10": (0.194, 0.789),
}
MINILM = {"ndcg@10": (0.314, 0.945)}
"""all-MiniLM-L6-v2 is not in the paper: a first, independent implementation gave these."""
METHODS = ("dense", "maxsim", "spectral")


def main() -> None:
    """Print one table an encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default=EngineSettings().engine, help="an engine's URL, or memory")
    parser.add_argument(
        "--encoders",
        nargs="+",
        default=["mpnet@torch:float32", "mpnet", "minilm@torch:float32", "minilm", "minilm@onnx"],
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the BEIR folder of LIMIT-small")
    arguments = parser.parse_args()
    configure_logs(logging.WARNING)
    collection = load_collection(arguments.data)
    described = f"{collection.name}, {len(collection.documents)} documents, {len(collection.queries)} queries"
    print(
        heading(
            "Table IV of Spectral Retrieval", data=described, packages=("numpy", "torch", "onnxruntime", "openvino")
        )
    )
    for name in arguments.encoders:
        print(measured(name, collection, None if arguments.engine == "memory" else arguments.engine))


def measured(name: str, collection: Collection, engine: str | None) -> str:
    """Return one encoder's table."""
    cache = Settings().cache_dir
    encoder = CachedEncoder(load_encoder(name, cache_dir=cache), cache / "encodings")
    paths = [None] if engine is None else [None, EngineSettings(engine=engine)]
    results, places = [], []
    for path in paths:
        plan = EvaluationPlan(resolve(METHODS), window=None, codec="float16", engine=path)
        result, place = run_plan(plan, collection, encoder)
        results.append(result)
        places.append(place)
    reference, tolerance = (PAPER, 0.002) if name.startswith("mpnet") else (MINILM, 0.005)
    rows = [_row(metric, results, reference.get(metric), tolerance) for metric in PAPER]
    columns = [
        "metric",
        *(column for method in METHODS for column in _columns(method, places)),
        f"within {tolerance}",
    ]
    return f"### {name} ({encoder.backend})\n\n{table(columns, rows)}\n{_parity(results)}\n"


def _columns(method: str, places: Sequence[str]) -> list[str]:
    expected = [] if method == "maxsim" else [f"{method}, expected"]
    return [*expected, *(f"{method}, {place}" for place in places)]


def _row(
    metric: str, results: Sequence[CollectionResult], expected: tuple[float, float] | None, tolerance: float
) -> list[str]:
    targets = dict(zip(("dense", "spectral"), expected or (), strict=False))
    cells = [metric]
    held = True
    for method in METHODS:
        if method != "maxsim":
            cells.append(f"{targets[method]:.3f}" if targets else "-")
        for result in results:
            mean = result.methods[method].scores.mean(metric)
            cells.append(f"{mean:.3f}")
            held &= method not in targets or abs(mean - targets[method]) <= tolerance + 1e-9
    return [*cells, "-" if not targets else "PASS" if held else "FAIL"]


def _parity(results: Sequence[CollectionResult]) -> str:
    if len(results) == 1:
        return ""
    memory, engine = results
    worst = max(
        abs(memory.methods[method].scores.mean(metric) - engine.methods[method].scores.mean(metric))
        for method in METHODS
        for metric in PAPER
    )
    return f"Greatest difference of a mean between memory and engine: {worst:.1e}.\n"


if __name__ == "__main__":
    main()
