"""Collections written as BEIR folders."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from es_ttc.lab.evaluation.datasets import CORPUS, QRELS, QUERIES, Collection


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
