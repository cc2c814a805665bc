"""BEIR collections: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv`` in one folder.

The format of Thakur et al., *BEIR* (2021): a document is ``{"_id", "title", "text"}``, a query ``{"_id", "text"}``, a
judgement one line ``query-id TAB corpus-id TAB score`` below a header line. Ids are strings and may hold spaces.
Further numbers of a document, at the top or inside objects such as ``metadata``, are its numeric fields.

Judgements by aspect, which BEIR does not have, are in ``qrels/SPLIT.aspects.tsv``: one line ``query-id TAB
aspect TAB corpus-id TAB score`` below a header line, the order of TREC's diversity judgements.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.text_files import parsed_json, text_lines
from es_ttc.common.validation import did_you_mean
from es_ttc.errors import ConfigurationError, InvalidRequest

CORPUS = "corpus.jsonl"
QUERIES = "queries.jsonl"
QRELS = "qrels"
_NOT_FIELDS = frozenset({"_id", "title", "text"})
ASPECTS = ".aspects"  # suffix of a split's name in the name of the file with its judgements by aspect


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a collection."""

    id: str
    title: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Numeric fields by path, such as ``metadata.year``; the least value of a list."""

    @property
    def source(self) -> dict[str, str]:
        """The document as it is indexed, without an empty title."""
        return {"title": self.title, "text": self.text} if self.title else {"text": self.text}


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection with the judgements of one split.

    Attributes:
        name: The folder's name.
        split: The split of the judgements.
        documents: The corpus, in the file's order.
        queries: Text of every query with judgements in the split, by id, in the file's order.
        qrels: Judgements by query id: ``{document id: grade}``; a grade of 1 or more means relevant.
        warnings: One sentence for each property of the data that changes the meaning of the figures.
        aspects: Judgements by query id and aspect: ``{aspect: {document id: grade}}``; empty if there are none.
    """

    name: str
    split: str
    documents: tuple[Document, ...]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]
    warnings: tuple[str, ...] = ()
    aspects: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)

    @property
    def text_fields(self) -> tuple[str, ...]:
        """The fields of its documents that are encoded."""
        return ("title", "text") if any(document.title for document in self.documents) else ("text",)

    @property
    def judgements(self) -> int:
        """Number of judged pairs."""
        return sum(len(judged) for judged in self.qrels.values())

    @property
    def relevant(self) -> int:
        """Number of pairs judged relevant."""
        return sum(grade > 0 for judged in self.qrels.values() for grade in judged.values())


def load_collection(folder: Path, split: str = "test") -> Collection:
    """Read a BEIR folder.

    Only queries that the split judges are kept. Judged documents that the corpus lacks stay judged, as in trec_eval:
    no ranking can reach them, so they lower every score; a warning counts them. Judged queries that ``queries.jsonl``
    lacks cannot be asked: they are left out, and a warning counts them too.

    Raises:
        ConfigurationError: The folder, a file or the split is missing, or a line is malformed; the message names the
            place and what is there instead.
    """
    _require(folder, split, (CORPUS, QUERIES))
    documents = tuple(_documents(folder / CORPUS))
    queries, qrels, unknown = _judged_queries(folder, split)
    if not documents:
        raise ConfigurationError(f"[{folder / CORPUS}] holds no document")
    by_aspect = folder / QRELS / f"{split}{ASPECTS}.tsv"
    judged = _judgements(by_aspect, ("query-id", "aspect", "corpus-id")) if by_aspect.is_file() else {}
    aspects = {query: grades for query, grades in judged.items() if query in qrels}
    warnings = _warnings(documents, qrels, unknown_queries=unknown)
    if aspects and len(aspects) < len(qrels):
        count = len(qrels) - len(aspects)
        warnings += (f"{count} queries have no judgement by aspect and count as zero for alpha-ndcg",)
    return Collection(folder.resolve().name, split, documents, queries, qrels, warnings, aspects)


def load_queries(folder: Path, split: str) -> Collection:
    """Read the queries and judgements of a folder, whose documents are in an index; ``corpus.jsonl`` is not read."""
    _require(folder, split, (QUERIES,))
    queries, qrels, _ = _judged_queries(folder, split)
    return Collection(folder.resolve().name, split, (), queries, qrels)


def _judged_queries(folder: Path, split: str) -> tuple[dict[str, str], dict[str, dict[str, int]], int]:
    """Return the texts and judgements of judged queries, and the number of judged queries without a text."""
    texts = {record["_id"]: record["text"] for record in _records(folder / QUERIES)}
    judged = _judgements(folder / QRELS / f"{split}.tsv")
    queries = {query: text for query, text in texts.items() if query in judged}
    if not queries:
        raise ConfigurationError(
            f"split [{split}] of [{folder}] judges no query of {QUERIES}: "
            f"{len(judged)} judged ids, {len(texts)} queries"
        )
    return queries, {query: judged[query] for query in queries}, len(judged.keys() - texts.keys())


def sample(collection: Collection, queries: int, seed: int) -> Collection:
    """Return a collection with a number of its queries, drawn at random; the same collection if it has no more."""
    if queries >= len(collection.queries):
        return collection
    drawn = set(np.random.default_rng(seed).choice(sorted(collection.queries), queries, replace=False).tolist())
    return only(collection, drawn)


def only(collection: Collection, queries: Container[str]) -> Collection:
    """Return a collection with some of its queries, in the collection's order."""
    return replace(
        collection,
        queries={query: text for query, text in collection.queries.items() if query in queries},
        qrels={query: judged for query, judged in collection.qrels.items() if query in queries},
        aspects={query: judged for query, judged in collection.aspects.items() if query in queries},
    )


def field_values(collection: Collection, name: str) -> NDArray[np.float64]:
    """Return a numeric field of all documents, ``(n,)``; NaN where one has no value."""
    values = np.array([document.numbers.get(name, np.nan) for document in collection.documents], np.float64)
    if np.isnan(values).all():
        known = {found for document in collection.documents for found in document.numbers}
        hint = did_you_mean(name, known) if known else ": its documents have no numbers"
        raise InvalidRequest(f"no document of [{collection.name}] has a number in the field [{name}]{hint}")
    return values


def splits(folder: Path) -> list[str]:
    """Return the names of a folder's splits."""
    return sorted(path.stem for path in (folder / QRELS).glob("*.tsv") if not path.stem.endswith(ASPECTS))


def _require(folder: Path, split: str, files: Sequence[str]) -> None:
    if not folder.is_dir():
        raise ConfigurationError(f"data folder [{folder}] does not exist")
    missing = [name for name in files if not (folder / name).is_file()]
    missing += [] if (folder / QRELS).is_dir() else [f"{QRELS}/"]
    if missing:
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
        raise ConfigurationError(
            f"[{folder}] has no {' and no '.join(missing)}: it holds {held}; "
            f"a BEIR folder holds {', '.join(files)} and {QRELS}/SPLIT.tsv"
        )
    if split not in splits(folder):
        raise ConfigurationError(
            f"[{folder}] has no split [{split}]: it has {', '.join(splits(folder)) or 'none'} (choose with --split)"
        )


def _documents(path: Path) -> Iterator[Document]:
    for record in _records(path):
        title = record.get("title") or ""
        if not isinstance(title, str):
            raise ConfigurationError(f"[{path}]: [title] of document [{record['_id']}] must be a string")
        numbers = dict(_numbers({key: value for key, value in record.items() if key not in _NOT_FIELDS}))
        yield Document(record["_id"], title, record["text"], numbers)


def _numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{key}.")
        elif (several := [one for one in (value if isinstance(value, list) else [value]) if _is_number(one)]) and (
            not isinstance(value, list) or len(several) == len(value)
        ):
            yield f"{prefix}{key}", float(min(several))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file, each with a unique string ``_id`` and a string ``text``."""
    seen: set[str] = set()
    for number, line in text_lines(path):
        if not line.strip():
            continue
        place = f"[{path}] line {number}"
        try:
            record = parsed_json(line)
        except ValueError as error:
            raise ConfigurationError(f"{place} is not JSON: {error}") from None
        if not isinstance(record, dict) or "_id" not in record or not isinstance(record.get("text"), str):
            raise ConfigurationError(f"{place} must be an object with [_id] and a string [text]")
        record["_id"] = str(record["_id"])
        if record["_id"] in seen:
            raise ConfigurationError(f"{place} repeats [_id] [{record['_id']}]: ids must differ")
        seen.add(record["_id"])
        yield record


def _judgements(path: Path, columns: Sequence[str] = ("query-id", "corpus-id")) -> dict[str, Any]:
    """Read judgements as grades by the ids of the columns, nested in their order."""
    judged: dict[str, Any] = {}
    for number, ids, grade in _grades(path, columns):
        inner = judged
        for one in ids[:-1]:
            inner = inner.setdefault(one, {})
        before = inner.setdefault(ids[-1], grade)
        if before != grade:
            *first, last = (f"[{one}]" for one in ids)
            raise ConfigurationError(
                f"[{path}] line {number} grades {', '.join(first)} and {last} {grade} after {before}"
            )
    return judged


def _grades(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[str], int]]:
    """Yield the lines of a file of judgements: the line's number, the columns before the score, the score."""
    for number, line in text_lines(path):
        *ids, score = line.split("\t")
        if (not ids and not score) or (number == 1 and not _is_integer(score)):
            continue  # a blank line, or the header
        if len(ids) != len(columns) or not _is_integer(score):
            raise ConfigurationError(
                f"[{path}] line {number} must be {' TAB '.join(columns)} TAB whole-number score, "
                f"got [{line.strip()[:200]}]"
            )
        yield number, ids, int(score)


def _is_integer(field: str) -> bool:
    try:
        int(field)
    except ValueError:
        return False
    return True


def _warnings(
    documents: tuple[Document, ...], qrels: Mapping[str, Mapping[str, int]], *, unknown_queries: int
) -> tuple[str, ...]:
    known = {document.id for document in documents}
    unknown = sum(document not in known for judged in qrels.values() for document in judged)
    hopeless = sum(all(grade <= 0 for grade in judged.values()) for judged in qrels.values())
    sentences = {
        "judged queries are not in queries.jsonl and are left out": unknown_queries,
        "judged documents are not in corpus.jsonl: no method can find them, so every score is lower": unknown,
        "queries have no relevant document and count as zero": hopeless,
    }
    return tuple(f"{count} {sentence}" for sentence, count in sentences.items() if count)
