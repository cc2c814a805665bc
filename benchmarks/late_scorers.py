"""One way to score late interaction, in a process of its own, for benchmarks.late_kernel: `late_scorers.py NAME CORES`.

Each line read is a request, each line written its answer. A process of its own may use another Python, with other
packages, and may crash. Of a rival's environment only numpy and the rival are imported.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Scores = NDArray[Any]
Call = Callable[[], Scores]


class Case(NamedTuple):
    """A window and a query: ``shortest`` to ``longest`` tokens a document."""

    shortest: int
    longest: int
    dims: int
    query_tokens: int


CASES: Mapping[str, Case] = {
    "100 documents of 256 tokens x 128, 32 query tokens": Case(256, 256, 128, 32),
    "100 documents of 256 tokens x 384, 12 query tokens": Case(256, 256, 384, 12),
    "100 documents of 16 to 512 tokens x 128, 32 query tokens": Case(16, 512, 128, 32),
}
DOCUMENTS = 100


@lru_cache(maxsize=1)
def data(name: str) -> tuple[Float32, list[Float32]]:
    """Return the query's and the documents' vectors of a case, the same in every process."""
    case = CASES[name]
    random = np.random.default_rng(case)
    lengths = random.integers(case.shortest, case.longest + 1, DOCUMENTS).tolist()
    query, *documents = (_unit(random, length, case.dims) for length in (case.query_tokens, *lengths))
    return query, documents


def reference(query: Float32, documents: list[Float32]) -> Scores:
    """Return the mean over the query's tokens of their greatest cosines, in float64."""
    wide = query.astype(np.float64)
    return np.array([(wide @ document.astype(np.float64).T).max(axis=1).mean() for document in documents])


def _unit(random: np.random.Generator, rows: int, dims: int) -> Float32:
    matrix = random.standard_normal((rows, dims)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix


def _maxsim_cpu(name: str, form: str) -> tuple[Call, Scores]:
    maxsim_cpu = import_module("maxsim_cpu")  # of the environment that --peers names

    query, documents = data(name)
    if form == "one array":
        stacked = np.stack(documents)
        return lambda: np.asarray(maxsim_cpu.maxsim_scores(query, stacked)) / len(query), reference(query, documents)
    return (
        lambda: np.asarray(maxsim_cpu.maxsim_scores_variable(query, documents)) / len(query),
        reference(query, documents),
    )


def _blas(name: str, form: str) -> tuple[Call, Scores]:
    query, documents = data(name)
    together = np.concatenate(documents)
    starts = np.cumsum([0, *map(len, documents[:-1])])
    return (
        lambda: np.maximum.reduceat(query @ together.T, starts, axis=1).mean(axis=0),
        reference(query, documents),
    )


def _es_ttc(name: str, form: str) -> tuple[Call, Scores]:
    from es_ttc.rescorers.base import Query
    from es_ttc.rescorers.blend.signals import all_signal_scores, signal_scores
    from es_ttc.rescorers.compiled import loops
    from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer

    code, _, how = form.partition(", ")
    build = how.removesuffix(" build") if how.endswith(" build") else loops.builds()[-1]
    window, right = _window(name, code, norms=how.startswith("spectral"))
    query, _ = data(name)
    asked = Query("", query.mean(axis=0, keepdims=True), tokens=query)
    alone = partial(MaxSimRescorer().score, asked, window, MaxSimParams(query="tokens"))
    scored = {
        "spectral too, one pass": lambda: (
            all_signal_scores(("spectral", "late_interaction"), asked, window)["late_interaction"].scores
        ),
        "spectral too, two passes": lambda: (
            [signal_scores(one, asked, window) for one in ("spectral", "late_interaction")][1].scores
        ),
    }
    return partial(_with_build, build, scored.get(how, alone)), right


def _with_build(build: str, score: Call) -> Scores:
    """Score with one of the compiled builds."""
    from es_ttc.rescorers.compiled import loops

    loops.use(build)
    return score()


@lru_cache(maxsize=16)
def _window(name: str, code: str, *, norms: bool) -> tuple[Any, Scores]:
    """Return a window as a search holds it, and what its late interaction is by definition."""
    from es_ttc.rescorers.base import Window
    from es_ttc.rescorers.spectral import DEFAULT_SCALES, scale_norms
    from es_ttc.vectors.quantise import as_stored, dequantise, quantise

    query, documents = data(name)
    tokens = [quantise(document, code) for document in documents]  # type: ignore[arg-type]
    window = Window(
        ids=[str(place) for place in range(len(tokens))],
        first_pass=np.zeros(len(tokens), np.float32),
        tokens=tokens,
        norms=[scale_norms(as_stored(document), DEFAULT_SCALES).in_steps() for document in tokens] if norms else None,
    )
    return window, reference(query, [dequantise(document) for document in tokens])


SCORERS: Mapping[str, Callable[[str, str], tuple[Call, Scores]]] = {
    "es-ttc": _es_ttc,
    "maxsim-cpu": _maxsim_cpu,
    "BLAS": _blas,
}


def main(scorer: str) -> None:
    calls: dict[tuple[str, str], Call] = {}
    for line in sys.stdin:
        case, form, times = json.loads(line)
        if (case, form) not in calls:
            call, right = SCORERS[scorer](case, form)
            calls[case, form] = call
            answer = float(np.abs(call() - right).max())
            answers = [answer]
        else:
            answers = [_milliseconds(calls[case, form]) for _ in range(times)]
        print(json.dumps(answers), flush=True)


def _milliseconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])
    sys.path[0] = os.path.dirname(sys.path[0])  # noqa: PTH120 - the repository, beside this folder
    main(sys.argv[1])
