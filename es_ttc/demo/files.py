"""The demonstration's files: the project's own lists are read, collections are written as BEIR folders."""

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from es_ttc.evaluation.datasets import CORPUS, QRELS, QUERIES, Collection


def read_lines(name: str) -> list[str]:
    """Return the lines of one of the project's own lists."""
    return (resources.files("es_ttc.demo") / "data" / name).read_text(encoding="utf-8").splitlines()


def read_rows(name: str) -> list[tuple[str, str]]:
    """Return the two columns of one of the project's own tab-separated tables, without its header."""
    rows = (line.split("\t") for line in read_lines(name)[1:])
    return [(left, right) for left, right in rows]


def write_collection(collection: Collection, folder: Path) -> Path:
    """Write a collection as the BEIR folder ``folder/name`` and return that; files of an earlier run are replaced."""
    target = folder / collection.name
    (target / QRELS).mkdir(parents=True, exist_ok=True)
    _replace(target / CORPUS, _json_lines({"_id": item.id, **item.source} for item in collection.documents))
    _replace(target / QUERIES, _json_lines({"_id": key, "text": text} for key, text in collection.queries.items()))
    rows = ["query-id\tcorpus-id\tscore"]
    for query, judged in collection.qrels.items():
        rows += [f"{query}\t{document}\t{grade}" for document, grade in judged.items()]
    _replace(target / QRELS / f"{collection.split}.tsv", "".join(f"{row}\n" for row in rows).encode())
    return target


def _json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the whole new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)
