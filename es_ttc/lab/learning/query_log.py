"""Query logs: plain text, CSV, JSON Lines and OpenSearch's UBI events, as distinct queries with their clicks."""

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import orjson

from es_ttc.errors import ConfigurationError

MAX_LENGTH = 1000  # characters of a query; longer lines of a log are no queries that somebody typed
_TEXT_KEYS = ("query", "query_text", "user_query", "text", "q")
_CLICK_KEYS = ("clicked", "object_id", "doc_id")
_QUERY_ID, _POSITION = "query_id", "position"
MIN_PROPENSITY = 0.1  # least probability that a position is looked at; bounds the weight of one click to 10


@dataclass(frozen=True, slots=True)
class QueryLog:
    """The distinct queries of a log in order of appearance, without outer and repeated blanks: how often each was sent.

    Clicks are sums of weights by query and document. Skipped are lines without a query, or with one that is too long.
    """

    counts: Mapping[str, int]
    clicks: Mapping[str, Mapping[str, float]]
    skipped: int


def inverse_propensity(position: int) -> float:
    """Return the inverse of the probability that a user looks at a position, from 1; 1 / position, bounded.

    The position-based model (Joachims, Swaminathan and Schnabel 2017, *Unbiased learning-to-rank with biased feedback*,
    section 5, eta = 1).
    """
    return 1 / max(1 / max(1, position), MIN_PROPENSITY)


def read_log(file: Path, *, weight: Callable[[int], float] = inverse_propensity) -> QueryLog:
    """Read a log; ``.gz`` is decompressed.

    A line of JSON has the query in `query`, `query_text`, `user_query`, `text` or `q`; a CSV or TSV file has a column
    of one of these names; any other file has a query per line. A click is an event with `object_id` (or `doc_id`,
    `clicked`), at the top or in UBI's `event_attributes.object`, beside its query or with the `query_id` of one before
    it; it weighs by its position from 1.
    """
    counts: Counter[str] = Counter()
    clicks: dict[str, dict[str, float]] = {}
    by_id: dict[str, str] = {}
    skipped = 0
    first: Mapping[str, Any] | None = None
    for record in records(file):
        first = record if first is None else first
        text, query_id = text_in(record), record.get(_QUERY_ID)
        document, position = _click(record)
        if text and query_id is not None:
            by_id[str(query_id)] = text
        text = text or by_id.get(str(query_id), "")
        if not text or len(text) > MAX_LENGTH:
            skipped += 1
            continue
        if document is None:
            counts[text] += 1
        else:
            counts[text] += 0
            of_query = clicks.setdefault(text, {})
            of_query[document] = of_query.get(document, 0.0) + weight(position)
    if not counts:
        raise ConfigurationError(f"[{file}] has no query: {_why_none(first, skipped)}")
    return QueryLog(counts, clicks, skipped)


def _why_none(first: Mapping[str, Any] | None, skipped: int) -> str:
    """Return why a log has no query, from its first record and the number of all."""
    if first is None:
        return "it is empty"
    if not any(key in first for key in _TEXT_KEYS):
        return f"its first record has [{'], ['.join(map(str, first))}]; name the field of queries [{_TEXT_KEYS[0]}]"
    return (
        f"each of its {skipped:,} lines has an empty text, none, or one of more than {MAX_LENGTH:,} characters; give "
        "one query per line"
    )


def text_in(record: Mapping[str, Any]) -> str:
    """Return the query of a record, a text or a number, without outer and repeated blanks; "" if it has none."""
    found = next((record[key] for key in _TEXT_KEYS if type(record.get(key)) in (str, int, float)), "")
    return " ".join(str(found).split())


def records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield a log's records, a query alone as ``{"query": text}``."""
    try:
        with _opened(file) as lines:
            if {".csv", ".tsv"} & {*file.suffixes}:
                yield from csv.DictReader(lines, delimiter="\t" if ".tsv" in file.suffixes else ",")
                return
            for number, line in enumerate(lines, 1):
                text = line.strip()
                if not text.startswith("{"):
                    yield from [{"query": text}] if text else []
                    continue
                try:
                    yield orjson.loads(text)
                except orjson.JSONDecodeError as error:
                    raise ConfigurationError(f"line {number} of [{file}] is not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"[{file}] cannot be read as UTF-8, convert it (`iconv -t UTF-8`): {error}") from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise ConfigurationError(f"[{file}] cannot be read: {error}") from error


def _opened(file: Path) -> TextIO:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig")
    return file.open(encoding="utf-8-sig", newline="")


def _click(record: Mapping[str, Any]) -> tuple[str | None, int]:
    """Return the clicked document of an event and its position; None for a record that is no click."""
    attributes = record.get("event_attributes")
    attributes = attributes if isinstance(attributes, Mapping) else {}
    inner = attributes.get("object")
    for source in (record, inner if isinstance(inner, Mapping) else {}):
        document = next((source[key] for key in _CLICK_KEYS if source.get(key) not in (None, "")), None)
        if document is not None and record.get("action_name", "click") == "click":
            return str(document), _position(attributes.get(_POSITION, record.get(_POSITION)))
    return None, 1


def _position(given: Any) -> int:
    """Return a position from 1; UBI writes ``{"ordinal": 3}``."""
    number = given.get("ordinal", 1) if isinstance(given, Mapping) else given
    try:
        return max(1, int(number or 1))
    except (TypeError, ValueError):
        return 1
