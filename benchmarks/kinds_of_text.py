"""Films and code: collections read from public repositories, and how the methods rank code.

    git clone --depth 1 https://github.com/elastic/elasticsearch-labs
    python -m benchmarks.kinds_of_text films elasticsearch-labs/notebooks/search/sample_data/learning-to-rank films
    python -m benchmarks.kinds_of_text code semble/benchmarks/annotations REPOSITORIES

`films` writes a BEIR folder (MSRD by Metarank Labs, CC BY): title, overview, people, genres and tags of 9,750 films,
with votes, rating, popularity, budget and year as numbers; 1,000 of 16,279 queries, drawn at random, are its test
queries, 1,000 more its validation queries.

`code` ranks the files of each repository for the annotated queries of MinishLab/semble. REPOSITORIES holds a clone of
each repository by its name. A document is a piece of 30 lines with the path as its title; a file stands where its first
piece stands. Targets of both grades count as relevant, as semble counts them.
"""

import argparse
import gzip
import json
import random
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.blend import METRIC, compared, prepared, shown, signals
from benchmarks.common import heading, table
from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import resolve_one, retrieval
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.vectors.tokens import Float64

HELD_OUT = 1000
LISTED = {"actors": "Actors", "characters": "Characters", "genres": "Genres", "tags": "Tags"}
NUMBERS = ("year", "votes", "rating", "popularity", "budget")
REPOSITORIES = {
    "axum": ("309d1bd9", "axum/src"),
    "express": ("8e022edc", "lib"),
    "fastapi": ("c3c9dd6b", "fastapi"),
    "gin": ("d3ffc998", ""),
    "gson": ("f4d371d2", "gson"),
    "model2vec": ("b3012ee0", "model2vec"),
}
"""Commit and folder that semble pins (benchmarks/repos.json)."""
SUFFIXES = (".go", ".java", ".js", ".py", ".rs")
LINES = 30
FIELDS = ("title", "text")
METHODS: Mapping[str, tuple[str, Any]] = {
    "bm25": ("bm25", {}),
    "dense": ("dense", {}),
    "RRF(b,d)": ("hybrid", {}),
    "z(b,d)": ("blend", signals("lexical", "dense")),
    "blend": ("blend", {}),
}


def main() -> None:
    """Write the collection of films, or print the table of code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("films", "code"))
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", default="minilm@onnx")
    arguments = parser.parse_args()
    if arguments.kind == "films":
        write_films(arguments.source, arguments.folder)
    else:
        print(heading("Code", data=", ".join(REPOSITORIES)))
        print(measured_code(arguments.source, arguments.folder, prepared(arguments.encoder)))


def write_films(source: Path, folder: Path) -> None:
    """Write the films and their judgements as a BEIR folder with the splits train, dev and test."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with gzip.open(source / "movies-corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        films = [json.loads(line) for line in lines]
    ids = {film["id"] for film in films}
    queries: dict[str, str] = {}
    judged: dict[str, list[tuple[str, str]]] = {}
    with gzip.open(source / "movies-judgments.tsv.gz", "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            query, text, film, grade = line.rstrip("\n").split("\t")
            queries[query] = text
            if film in ids:
                judged.setdefault(query, []).append((film, grade))
    _write_lines(folder / "corpus.jsonl", map(_film, films))
    _write_lines(folder / "queries.jsonl", ({"_id": query, "text": text} for query, text in queries.items()))
    names = sorted(judged)
    random.Random(0).shuffle(names)
    splits = {"test": names[:HELD_OUT], "dev": names[HELD_OUT : 2 * HELD_OUT], "train": names[2 * HELD_OUT :]}
    for split, chosen in splits.items():
        rows = [f"{query}\t{film}\t{grade}\n" for query in sorted(chosen) for film, grade in judged[query]]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), "utf-8")


def _film(film: Mapping[str, Any]) -> dict[str, Any]:
    parts = [film["overview"] or ""]
    parts += [f"Director: {film['director']}."] if film.get("director") else []
    parts += [f"{label}: {', '.join(film[name])}." for name, label in LISTED.items() if film.get(name)]
    numbers = {name: film[name] for name in NUMBERS if film.get(name) is not None}
    return {"_id": film["id"], "title": film["title"], "text": " ".join(parts), "metadata": numbers}


def _write_lines(file: Path, rows: Iterator[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def measured_code(annotations: Path, repositories: Path, encoder: Encoder) -> str:
    """Return the table of every repository's nDCG@10 by file."""
    values: dict[str, dict[str, Float64]] = {}
    rows = []
    for name in REPOSITORIES:
        collection, targets = code_collection(name, annotations / f"{name}.json", repositories / name)
        values[name] = by_file(collection, targets, encoder)
        figures = [f"{values[name][method].mean():.3f}" for method in METHODS]
        rows.append([name, len(collection.documents), len(targets), *figures])
    together = {method: np.concatenate([one[method] for one in values.values()]) for method in METHODS}
    means = [f"{together[method].mean():.3f}" for method in METHODS]
    differences = [shown(compared(together["blend"], together[method])) for method in METHODS if method != "blend"]
    rows += [["all queries", "", len(together["blend"]), *means], ["blend - ...", "", "", *differences, ""]]
    return table([METRIC, "pieces", "queries", *METHODS], rows)


def code_collection(name: str, annotated: Path, clone: Path) -> tuple[Collection, dict[str, dict[str, int]]]:
    """Return the pieces of a repository's files as a collection, and the relevant files of each query."""
    commit, root = REPOSITORIES[name]
    documents = [
        Document(f"{path}#{start}", path, "\n".join(lines[start : start + LINES]))
        for path, lines in _files(clone, commit, root)
        for start in range(0, len(lines), LINES)
    ]
    queries, targets = {}, {}
    for number, task in enumerate(json.loads(annotated.read_bytes())):
        queries[str(number)] = task["query"]
        wanted = [*task["relevant"], *task["secondary"]]
        targets[str(number)] = {one if isinstance(one, str) else one["path"]: 1 for one in wanted}
    return Collection(name, "test", tuple(documents), queries, {query: {} for query in queries}), targets


def _files(clone: Path, commit: str, root: str) -> Iterator[tuple[str, Sequence[str]]]:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", clone, *arguments], check=True, capture_output=True, text=True, errors="replace"
        ).stdout

    for path in git("ls-tree", "-r", "--name-only", commit, *([root] if root else [])).splitlines():
        if path.endswith(SUFFIXES):
            yield path, git("show", f"{commit}:{path}").splitlines()


def by_file(collection: Collection, targets: Mapping[str, Mapping[str, int]], encoder: Encoder) -> dict[str, Float64]:
    """Return each method's values, query by query, where a file stands at its first piece."""
    spec = IndexSpec(encoder.identity, text_fields=FIELDS, codec="int4")
    features = encode_corpus(collection.documents, spec, encoder)
    queries = encode_queries(list(collection.queries.values()), encoder, tokens=True)
    texts = [compose(document.source, FIELDS)[0] for document in collection.documents]
    searcher = MemorySearcher(collection, texts, retrieval(()), features, queries, window=100)
    values = {}
    for name, (method, params) in METHODS.items():
        pieces = searcher.rank(resolve_one(method, params)).rankings
        files = {
            query: list(dict.fromkeys(piece.partition("#")[0] for piece in found)) for query, found in pieces.items()
        }
        values[name] = score_by(METRIC, targets, files)
    return values


if __name__ == "__main__":
    main()
