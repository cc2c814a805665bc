"""Judgements in the forms of other programs, both ways: BEIR, TREC, OpenSearch's Search Relevance Workbench, Quepid.

BEIR and TREC name queries by ids; the Workbench and Quepid name them by their texts. A file's judgements are read into
:class:`Graded` records; :func:`identified` gives them the ids of known queries, or ids made of their texts.
"""

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from es_ttc.common.text_files import csv_rows, parsed_json, text_lines, whole_text
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.evaluation.datasets import QRELS, QUERIES, load_queries
from es_ttc.lab.evaluation.metrics import Qrels
from es_ttc.lab.judging.records import GRADES, MAX_POOL_DEPTH, query_id

_QUEPID = ("query", "docid", "rating")
_WORKBENCH_TYPE = "IMPORT_JUDGMENT"


class Format(StrEnum):
    """A form of judgements."""

    BEIR = "beir"
    TREC = "trec"
    TREC_RUN = "trec-run"
    WORKBENCH = "workbench"
    QUEPID = "quepid"


@dataclass(frozen=True, slots=True)
class Graded:
    """One judgement of a file."""

    query: str
    document: str
    grade: float
    place: str


@dataclass(frozen=True, slots=True)
class Judged:
    """Judgements with the texts of their queries."""

    texts: Mapping[str, str]
    qrels: Qrels

    @property
    def documents(self) -> set[str]:
        """The judged documents."""
        return {document for judged in self.qrels.values() for document in judged}

    def without(self, documents: Collection[str]) -> "Judged":
        """Return the judgements of other documents."""
        left = {
            query: others
            for query, judged in self.qrels.items()
            if (others := {name: grade for name, grade in judged.items() if name not in documents})
        }
        return Judged({query: self.texts[query] for query in left}, left)


def read_judgements(form: Format, path: Path, known: Mapping[str, str], *, split: str, highest: float | None) -> Judged:
    """Read a file or folder of judgements."""
    texts = known
    match form:
        case Format.BEIR:
            folder = load_queries(path, split)
            texts = folder.queries
            graded: Iterable[Graded] = (
                Graded(query, document, grade, f"[{path / QRELS / split}.tsv], query [{query}]")
                for query, judged in folder.qrels.items()
                for document, grade in judged.items()
            )
        case Format.TREC:
            graded = _trec(path)
        case Format.WORKBENCH:
            texts, graded = identified(_workbench(path), known)
        case Format.QUEPID:
            texts, graded = identified(_quepid(path), known)
        case Format.TREC_RUN:
            raise InvalidRequest("a TREC run has no judgements: it is read into pools")
    qrels: dict[str, dict[str, int]] = {}
    for one in graded:
        if one.query not in texts:
            raise InvalidRequest(
                f"{one.place}: the text of query [{one.query}] is not known: give the queries with --queries FILE"
            )
        grade = _scaled(one, highest)
        if qrels.setdefault(one.query, {}).setdefault(one.document, grade) != grade:
            raise ConfigurationError(f"{one.place} grades document [{one.document}] for the same query again")
    if not qrels:
        raise ConfigurationError(f"[{path}] holds no judgement")
    return Judged({query: texts[query] for query in qrels}, qrels)


def identified(graded: Iterable[Graded], known: Mapping[str, str]) -> tuple[dict[str, str], list[Graded]]:
    """Return texts by id, and judgements by id, of judgements that name their queries by texts."""
    ids: dict[str, str] = {}
    for query, text in known.items():
        ids.setdefault(text.strip(), query)
    texts: dict[str, str] = {}
    found = []
    for one in graded:
        query = ids.get(one.query.strip()) or query_id(one.query)
        texts.setdefault(query, one.query.strip())
        found.append(Graded(query, one.document, one.grade, one.place))
    return texts, found


def read_runs(path: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """Read a TREC run: by tag and query the best documents by score, then rank, as many as a pool keeps."""
    found: dict[str, dict[str, list[tuple[float, int, str]]]] = {}
    for place, (query, _, document, rank, score, tag) in _columns(path, 6, "query Q0 document rank score tag"):
        try:
            entry = (-float(score), int(rank), document)
        except ValueError:
            raise ConfigurationError(f"{place}: rank [{rank}] and score [{score}] must be numbers") from None
        found.setdefault(tag, {}).setdefault(query, []).append(entry)
    if not found:
        raise ConfigurationError(f"[{path}] holds no run")
    return {
        tag: {
            query: tuple(dict.fromkeys(document for _, _, document in sorted(run)))[:MAX_POOL_DEPTH]
            for query, run in by_query.items()
        }
        for tag, by_query in found.items()
    }


def write_beir(out: Path, judged: Judged, split: str) -> Sequence[Path]:
    """Write queries and judgements into a BEIR folder, which then lacks the documents. Return the written files."""
    (out / QRELS).mkdir(parents=True, exist_ok=True)
    queries, qrels = out / QUERIES, out / QRELS / f"{split}.tsv"
    queries.write_bytes(b"".join(_json_line({"_id": query, "text": text}) for query, text in judged.texts.items()))
    lines = ["query-id\tcorpus-id\tscore"]
    for query, document, grade in _rows(judged.qrels):
        _require_one_line("\t", query, document)
        lines.append(f"{query}\t{document}\t{grade}")
    qrels.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return queries, qrels


def trec(qrels: Qrels) -> bytes:
    """Return TREC qrels: ``query 0 document grade``."""
    lines = []
    for query, document, grade in _rows(qrels):
        _require_one_line(" \t", query, document)
        lines.append(f"{query} 0 {document} {grade}\n")
    return "".join(lines).encode()


def trec_runs(runs: Mapping[str, Mapping[str, Sequence[str]]]) -> bytes:
    """Return TREC runs of methods; scores are descending whole numbers, blanks in a method's name underscores."""
    lines = []
    for method, by_query in runs.items():
        tag = "_".join(method.split())
        for query, documents in by_query.items():
            for rank, document in enumerate(documents, 1):
                _require_one_line(" \t", query, document)
                lines.append(f"{query} Q0 {document} {rank} {len(documents) + 1 - rank} {tag}\n")
    return "".join(lines).encode()


def workbench(judged: Judged, name: str, description: str) -> bytes:
    """Return the body of `PUT _plugins/_search_relevance/judgments`."""
    ratings = [
        {
            "query": judged.texts[query],
            "ratings": [{"docId": document, "rating": f"{grade:.3f}"} for document, grade in documents.items()],
        }
        for query, documents in judged.qrels.items()
    ]
    body = {"name": name, "description": description, "type": _WORKBENCH_TYPE, "judgmentRatings": ratings}
    return orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n"


def quepid(judged: Judged) -> bytes:
    """Return Quepid's CSV of ratings: ``query,docid,rating``."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_QUEPID)
    writer.writerows((judged.texts[query], document, grade) for query, document, grade in _rows(judged.qrels))
    return text.getvalue().encode()


def _trec(path: Path) -> Iterator[Graded]:
    for place, (query, _, document, grade) in _columns(path, 4, "query 0 document grade"):
        yield Graded(query, document, _number(grade, place), place)


def _columns(path: Path, number: int, form: str) -> Iterator[tuple[str, list[str]]]:
    for line_number, line in text_lines(path):
        if not line.strip():
            continue
        place = f"[{path}] line {line_number}"
        columns = line.split()
        if len(columns) != number:
            raise ConfigurationError(f"{place} must be `{form}`, got [{line.strip()[:80]}]")
        yield place, columns


def _workbench(path: Path) -> Iterator[Graded]:
    """Read a judgement list: the body that imports it, or the answer that shows it."""
    try:
        data = parsed_json(whole_text(path))
    except ValueError as error:
        raise ConfigurationError(f"[{path}] is not JSON: {error}") from None
    try:
        lists = [hit["_source"] for hit in data["hits"]["hits"]] if "hits" in data else [data]
        for one in lists:
            for entry in one["judgmentRatings"]:
                for rating in entry["ratings"]:
                    place = f"[{path}], query [{str(entry['query'])[:50]}]"
                    yield Graded(
                        str(entry["query"]), str(rating["docId"]), _number(str(rating["rating"]), place), place
                    )
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            f"[{path}] is no judgement list: it must hold [judgmentRatings] with [query] and [ratings] of [docId] and "
            f"[rating] ({type(error).__name__}: {error})"
        ) from None


def _quepid(path: Path) -> Iterator[Graded]:
    for number, row in csv_rows(path):
        if not row or (number == 1 and tuple(cell.strip().lower() for cell in row) == _QUEPID):
            continue
        place = f"[{path}] line {number}"
        if len(row) != len(_QUEPID):
            raise ConfigurationError(f"{place} must be `query,docid,rating`, got {len(row)} columns")
        query, document, rating = row
        if rating.strip():  # Quepid exports what it shows without a rating with an empty one
            yield Graded(query, document, _number(rating, place), place)


def _scaled(one: Graded, highest: float | None) -> int:
    top = GRADES[-1]
    if highest is None:
        if one.grade not in GRADES:
            raise InvalidRequest(
                f"{one.place} grades document [{one.document}] {one.grade:g}: grades are 0 to {top}; name the greatest "
                "grade of another scale with --highest"
            )
        return int(one.grade)
    if not 0 <= one.grade <= highest:
        raise InvalidRequest(
            f"{one.place} grades document [{one.document}] {one.grade:g}, which is not from 0 to --highest {highest:g}"
        )
    return int(one.grade * top / highest + 0.5)


def _number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{place}: [{text[:50]}] is no grade") from None


def _rows(qrels: Qrels) -> Iterator[tuple[str, str, int]]:
    for query, documents in qrels.items():
        for document, grade in documents.items():
            yield query, document, grade


def _require_one_line(refused: str, *ids: str) -> None:
    for one in ids:
        if any(sign in one for sign in f"{refused}\r\n"):
            raise InvalidRequest(f"id [{one}] holds a space or a line break, which this form cannot hold: take another")


def _json_line(record: Mapping[str, Any]) -> bytes:
    return orjson.dumps(record) + b"\n"
