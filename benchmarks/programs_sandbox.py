"""What a promoted program's own process adds to a window of 100 documents, encoder and engine apart.

Both ways take turns, window by window, so that other work on the machine meets both alike. By the clock, since two
processes share the work.
"""

import argparse
import statistics
import time
from importlib.resources import files

import numpy as np

from benchmarks.common import heading, table
from benchmarks.programs_window import COUNTS, DIMS, unit, window
from es_ttc.rescorers.base import Query
from es_ttc.rescorers.programs.interface import PASSAGE, QUERY, Program, run
from es_ttc.rescorers.programs.source import compiled
from es_ttc.rescorers.programs.windows import context_of
from es_ttc.sandbox.process_pool import ProgramLimits, ProgramProcessPool
from es_ttc.vectors.chunks import GRANULARITIES

_WARM = 10
_MB = 2**20


def _of_the_paper(name: str) -> str:
    text = files("es_ttc.rescorers.programs").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return f"{text}\n\ndef program(Q, D, S, ctx):\n    return {name}(Q, D, S, ctx)\n"


PROGRAMS = {
    "the cosine": "def program(Q, D, S, ctx):\n    return S\n",
    "words": "def program(Q, D, S, ctx):\n    return S + ctx.lexicon().overlap(ctx.query_texts)\n",
    "sentmaxsim": _of_the_paper("sentmaxsim"),
    "covtriple": _of_the_paper("covtriple"),
}
READ = {"the cosine": (), "words": (), "sentmaxsim": ("sentences",), "covtriple": GRANULARITIES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=200)
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    documents = window(arguments.documents, random)
    pooled = documents.pooled
    assert pooled is not None
    query = Query("word1 other7 nothing", unit(random, 1))
    host = ProgramProcessPool(ProgramLimits())
    rows = []
    for name, source in PROGRAMS.items():
        here, there = compiled(source), host.program(source)

        def once(program: Program) -> float:
            context = context_of([query], documents, GRANULARITIES, engine_lexical=False)
            context.views = {**context.views, (QUERY, None): pooled, (PASSAGE, None): pooled}
            start = time.perf_counter()
            run(program, query.vectors, pooled, context)
            return (time.perf_counter() - start) * 1000

        first = once(there)
        both = [(once(here), once(there)) for _ in range(arguments.repeat)][_WARM:]
        medians = [statistics.median(times) for times in zip(*both, strict=True)]
        sent = sum(COUNTS[one] for one in READ[name]) * arguments.documents * DIMS * 4 / _MB
        added = statistics.median(two - one for one, two in both)
        figures = (*medians, added)
        rows.append((name, f"{sent:.1f}", *(f"{one:.2f}" for one in figures), f"{first:.0f}"))
    host.close()
    data = f"synthetic: {arguments.documents} documents, {COUNTS} each, {DIMS} dimensions"
    print(heading("Promoted programs in processes of their own", data=data))
    print(table(("program", "MB of chunks", "here, ms", "own process, ms", "added, ms", "first window, ms"), rows))


if __name__ == "__main__":
    main()
