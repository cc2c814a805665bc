"""What a program takes for one query over a window of 100 documents, encoder and engine apart.

Processor time, so that other work on the machine changes little. Expanding programs get an encoder that costs nothing.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.common import heading, table
from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.programs.interface import PASSAGE
from es_ttc.rescorers.programs.primitives.moments import Moments
from es_ttc.rescorers.programs.rescorers import LexicalParams, ProgramParams, rescorer_of
from es_ttc.vectors.chunks import DocumentChunks, Granularity
from es_ttc.vectors.quantise import quantise
from es_ttc.vectors.tokens import Float32

DIMS = 384
COUNTS: dict[Granularity, int] = {"sentences": 10, "pairs": 9, "paragraphs": 2}


def unit(random: np.random.Generator, rows: int) -> Float32:
    matrix = random.standard_normal((rows, DIMS)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix


def chunks_of(text: str, random: np.random.Generator) -> DocumentChunks:
    """Return the chunks of a document of some hundred characters, with random vectors."""
    return DocumentChunks(
        text,
        {name: np.array([[10 * i, 10 * i + 9] for i in range(n)], np.int32) for name, n in COUNTS.items()},
        {name: quantise(unit(random, n), "int8") for name, n in COUNTS.items()},
        quantise(unit(random, 1), "int8"),
    )


def window(documents: int, random: np.random.Generator) -> Window:
    text = " ".join(f"word{place} other{place}." for place in range(100))
    chunks = [chunks_of(text, random) for _ in range(documents)]
    first_pass = np.linspace(20, 1, documents, dtype=np.float32)
    moments = Moments.of(unit(random, 200), 48)
    return Window(
        list(map(str, range(documents))), first_pass, unit(random, documents), chunks=chunks, calibration=moments
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=50)
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    documents = window(arguments.documents, random)
    known = unit(random, 64)

    def encode(
        texts: Sequence[str], adapter: str = PASSAGE, dimensions: int | None = None, max_length: int | None = None
    ) -> Float32:
        return known[: len(texts)]

    query = Query("word1 other7 nothing", unit(random, 1), encode=encode)
    data = f"synthetic: {arguments.documents} documents, {COUNTS} each, int8, {DIMS} dimensions"
    print(heading("Programs over one window", data=data))
    rows = []
    for name, entry in CATALOGUE.items():
        rescorer = rescorer_of(name)
        params = LexicalParams() if entry.lexical else ProgramParams()
        times = []
        for _ in range(arguments.repeat):
            start = time.process_time()
            rescorer.score(query, documents, params)
            times.append((time.process_time() - start) * 1000)
        rows.append((name, entry.passes, f"{statistics.median(times[3:]):.1f}"))
    print(table(("program", "encodings a query", "ms of processor time, median"), rows))


if __name__ == "__main__":
    main()
