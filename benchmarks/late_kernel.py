"""Late interaction from every stored form against maxsim-cpu and BLAS, in turns, on one core and on two.

maxsim-cpu is not needed by anything else, so it may be in an environment of its own: `--peers ITS/bin/python`.
"""

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import click

from benchmarks.common import heading, table
from benchmarks.late_scorers import CASES, DOCUMENTS, data
from es_ttc.rescorers.compiled import loops

ROUNDS, CALLS = 10, 4
TOLERANCE = 1e-5
OURS = ("float32", "float16", "int8", "int4", "int2", *(f"int8, {build} build" for build in loops.builds()[:-1]))
BLEND = (
    "float32, spectral too, one pass",
    "float32, spectral too, two passes",
    "int8, spectral too, one pass",
    "int8, spectral too, two passes",
)
RIVAL = ("maxsim-cpu", "")


class Times(NamedTuple):
    """One way's times of a call in ms, and how far its scores are from the definition."""

    best: float
    median: float
    error: float

    @property
    def shown(self) -> str:
        """As a cell of a table."""
        return f"{self.best:.2f} / {self.median:.2f}"


class Scorer:
    """A process that scores, on some cores; started again when it has crashed."""

    def __init__(self, python: str, name: str, cores: int) -> None:
        one_library = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(cores))
        self._command = [python, str(Path(__file__).with_name("late_scorers.py")), name, str(cores)]
        self._environment = {**os.environ, **one_library}
        self._process: subprocess.Popen[str] | None = None

    def ask(self, case: str, form: str, times: int) -> list[float] | None:
        """Return what the process answers; None where it crashes."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._environment,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps((case, form, times)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            return None
        found: list[float] = json.loads(answer)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def measured(
    scorers: Sequence[tuple[Scorer, str, str]], case: str, rounds: int = ROUNDS
) -> Iterator[tuple[tuple[str, str], Times | str]]:
    """Yield each way's times, measured in turns, or why it has none."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    errors: dict[tuple[str, str], float] = {}
    failed: dict[tuple[str, str], str] = {}
    for scorer, name, form in scorers:
        first = scorer.ask(case, form, 0)
        if first is None:
            failed[name, form] = "crashes"
        elif first[0] > TOLERANCE:
            failed[name, form] = f"scores differ by {first[0]:.2g}"
        else:
            errors[name, form] = first[0]
    for _ in range(rounds):
        for scorer, name, form in scorers:
            if (name, form) in errors and (name, form) not in failed:
                answer = scorer.ask(case, form, CALLS)
                if answer is None:
                    failed[name, form] = "crashes"
                else:
                    times[name, form] += answer
    for _, name, form in scorers:
        key = (name, form)
        yield key, failed[key] if key in failed else Times(min(times[key]), statistics.median(times[key]), errors[key])


def multiplications(case: str) -> float:
    query, documents = data(case)
    return float(len(query) * sum(document.size for document in documents))


def megabytes(case: str, form: str) -> float:
    components = sum(document.size for document in data(case)[1])
    return components * {"float32": 4, "float16": 2}.get(form.partition(",")[0], 1) / 1e6


def case_table(case: str, results: Sequence[dict[tuple[str, str], Times | str]]) -> str:
    """Return a case's table: one row for each way, best and median on one core and on two."""
    rows = []
    for key in results[0]:
        name, form = key
        cells = [f"{name} {form}".strip()]
        for found in results:
            each, rival = found[key], found[RIVAL]
            cells.append(each if isinstance(each, str) else each.shown)
            cells.append(
                f"{rival.best / each.best:.2f}" if isinstance(each, Times) and isinstance(rival, Times) else ""
            )
        one = results[0][key]
        if isinstance(one, Times):
            work, size = multiplications(case), megabytes(case, form if name == "es-ttc" else "float32")
            cells += [f"{work / one.best / 1e6:.1f}", f"{size / one.best:.1f}", f"{one.error:.0e}"]
        else:
            cells += [""] * 3
        rows.append(cells)
    columns = ("", "1 core, ms", "faster", "2 cores, ms", "faster", "10^9 a second", "GB a second", "error")
    return table(columns, rows)


def blend_table(case: str, results: Sequence[dict[tuple[str, str], Times | str]]) -> str:
    rows = [
        (form, *(each if isinstance(each := found["es-ttc", form], str) else each.shown for found in results))
        for form in BLEND
    ]
    return table(("", "1 core, ms", "2 cores, ms"), rows)


@click.command()
@click.option("--peers", default=sys.executable, help="The Python of an environment with numpy and maxsim-cpu.")
def main(peers: str) -> None:
    """Print the tables."""
    version = subprocess.run(
        [peers, "-c", "from importlib.metadata import version; print(version('maxsim-cpu'))"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    print(heading("Late interaction", data="random unit vectors", packages=("numpy",)))
    print(f"maxsim-cpu {version or '(absent)'}. Load average before: {os.getloadavg()[0]:.1f}\n")
    print(
        f"The build for this processor is {loops.builds()[-1]}. Times are best / median of {ROUNDS * CALLS} calls in "
        "turns; `faster` is how many times as fast as maxsim-cpu, by the best; `10^9 a second` are multiply-adds on "
        "one core, `GB a second` what it reads of stored vectors.\n"
    )
    for number, case in enumerate(CASES):
        form = "one array" if CASES[case].shortest == CASES[case].longest else "list"
        results, both = [], []
        for cores in (1, 2):
            with (
                Scorer(sys.executable, "es-ttc", cores) as ours,
                Scorer(peers, "maxsim-cpu", cores) as rival,
                Scorer(sys.executable, "BLAS", cores) as blas,
            ):
                ways = [(ours, "es-ttc", own) for own in OURS]
                found = dict(measured([*ways, (rival, "maxsim-cpu", form), (blas, "BLAS", "float32")], case))
                if not version:
                    found["maxsim-cpu", form] = "absent"
                results.append({(name, "" if name == "maxsim-cpu" else own): at for (name, own), at in found.items()})
                if number < 2:
                    both.append(dict(measured([(ours, "es-ttc", own) for own in BLEND], case, ROUNDS // 2)))
        print(f"### {case}\n\n{case_table(case, results)}")
        if both:
            print(
                f"Spectral retrieval and late interaction of these {DOCUMENTS} documents:\n\n{blend_table(case, both)}"
            )


if __name__ == "__main__":
    main()
