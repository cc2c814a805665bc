"""Query logs: plain text, CSV, JSON and OpenSearch's UBI, as distinct queries with their clicks.

UBI (User Behavior Insights) has searches in `ubi_queries`, with the text in `user_query` and the engine's DSL in
`query`, and events in `ubi_events`, which name their search by `query_id`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from es_ttc.common.text_files import MAX_LINE, csv_rows, parsed_json, text_lines
from es_ttc.errors import ConfigurationError

MAX_LENGTH = 1000  # characters of a query; longer lines of a log are no queries that somebody typed
MIN_PROPENSITY = 0.1  # least probability that a position is looked at; bounds the weight of one click to 10

_JSON_FILES = frozenset({".json", ".jsonl", ".ndjson"})
_TEXT_KEYS = ("user_query", "query", "query_text", "text", "q")
_DOCUMENT_KEYS = ("clicked", "object_id", "doc_id")
_DOCUMENTS = (*_DOCUMENT_KEYS, *(f"event_attributes.object.{key}" for key in _DOCUMENT_KEYS))
_POSITIONS = (
    "event_attributes.position.ordinal", "event_attributes.position", "event_attributes.rank", "position.ordinal",
    "position",
)  # fmt: skip
_SEARCHES = ("", "search", "click")  # values of `action_name` of a record that tells of a search
_BULK_ACTIONS = ("index", "create")


@dataclass(frozen=True, slots=True)
class QueryLog:
    """The distinct queries of a log in order of appearance, without outer and repeated blanks: how often each was sent.

    Clicks are sums of weights by query and document. Skipped are lines without a query, or with one that is too long.
    """

    counts: Mapping[str, int]
    clicks: Mapping[str, Mapping[str, float]]
    skipped: int


class _Click(NamedTuple):
    text: str
    query_id: str
    document: str
    position: int | None


def inverse_propensity(position: int) -> float:
    """Return the inverse of the probability that a user looks at a position, from 1; 1 / position, bounded.

    The position-based model (Joachims, Swaminathan and Schnabel 2017, *Unbiased learning-to-rank with biased feedback*,
    section 5, eta = 1).
    """
    return 1 / max(1 / max(1, position), MIN_PROPENSITY)


def read_log(file: Path, *, weight: Callable[[int], float] = inverse_propensity) -> QueryLog:
    """Read a log; ``.gz`` is decompressed.

    A record has the query in `user_query`, `query`, `query_text`, `text` or `q`, and tells of one search; those of one
    `query_id` tell of the same. A click is a record with `object_id` (or `doc_id`, `clicked`), at the top or in UBI's
    `event_attributes.object`, with its query or a `query_id` of the log. It weighs by its position; where the log has a
    position 0, positions count from 0.
    """
    read = _Records()
    first: Mapping[str, Any] | None = None
    for record in map(_source_of, records(file)):
        if not _is_bulk_action(record):
            first = record if first is None else first
            read.add(record)
    clicks = read.weighted_clicks(weight)
    if not read.counts:
        raise ConfigurationError(f"[{file}] has no query: {_why_none(first, read.skipped)}")
    return QueryLog(read.counts, clicks, read.skipped)


class _Records:
    """The searches and clicks of a log; clicks wait for their queries, which may come later."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.skipped = 0
        self._texts: dict[str, str] = {}  # by the id of the query
        self._clicks: list[_Click] = []
        self._first_position = 1

    def add(self, record: Mapping[str, Any]) -> None:
        """Read one record."""
        text, query_id, action = text_in(record), _text_at(record, "query_id"), _text_at(record, "action_name")
        if len(text) > MAX_LENGTH or not (text or query_id):
            self.skipped += 1
            return
        if text:
            self.counts[text] += query_id not in self._texts if query_id else action in _SEARCHES
            self._texts.setdefault(query_id, text)
        document = next((found for path in _DOCUMENTS if (found := _text_at(record, path))), "")
        position = _position(record)
        if document and position == 0:
            self._first_position = 0
        if document and action in ("", "click"):
            self._clicks.append(_Click(text, query_id, document, position))
        elif not text and not action:
            self.skipped += 1

    def weighted_clicks(self, weight: Callable[[int], float]) -> dict[str, dict[str, float]]:
        """Return the weights of clicks by query and document, and count those without a query as skipped."""
        weights: dict[str, dict[str, float]] = {}
        for click in self._clicks:
            text = click.text or self._texts.get(click.query_id, "")
            if not text:
                self.skipped += 1
                continue
            of_query = weights.setdefault(text, {})
            position = 1 if click.position is None else max(1, click.position + 1 - self._first_position)
            of_query[click.document] = of_query.get(click.document, 0.0) + weight(position)
        return weights


def _why_none(first: Mapping[str, Any] | None, skipped: int) -> str:
    """Return why a log has no query, from its first record and the number of all."""
    if first is None:
        return "it is empty"
    if not any(key in first for key in _TEXT_KEYS):
        return f"its first record has [{'], ['.join(map(str, first))}]; name the field of queries [query]"
    return (
        f"each of its {skipped:,} lines has an empty text, none, or one of more than {MAX_LENGTH:,} characters; give "
        "one query per line"
    )


def text_in(record: Mapping[str, Any]) -> str:
    """Return the query of a record, a text or a number, without outer and repeated blanks; "" if it has none.

    A JSON object in text form is a query in the engine's DSL, which nobody typed.
    """
    texts = (" ".join(str(record[key]).split()) for key in _TEXT_KEYS if type(record.get(key)) in (str, int, float))
    return next((text for text in texts if text and _json_object(text) is None), "")


def records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield a log's records, a query alone as ``{"query": text}``."""
    if ".csv" in file.suffixes:
        yield from _rows(csv_rows(file))
    elif ".tsv" in file.suffixes:
        yield from _rows(csv_rows(file, delimiter="\t", quoted=False))
    else:
        lines = ((number, stripped) for number, line in text_lines(file) if (stripped := line.strip()))
        first = next(lines, (0, ""))
        if first[1].startswith("["):
            yield from _array_or_lines(file, first, lines)
        elif first[1]:
            yield from (_record(file, *line) for line in chain([first], lines))


def _rows(rows: Iterator[tuple[int, Sequence[str]]]) -> Iterator[Mapping[str, Any]]:
    _, header = next(rows)
    for _, row in rows:
        yield dict(zip(header, row, strict=False))


def _array_or_lines(
    file: Path, first: tuple[int, str], lines: Iterator[tuple[int, str]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a JSON array, or the lines of a file that only begins like one."""
    read, length = [first], len(first[1])
    for line in lines:
        read.append(line)
        length += len(line[1])
        if length > MAX_LINE:
            break
    try:
        rows = parsed_json("\n".join(text for _, text in read))
    except ValueError as error:
        if {*file.suffixes} & _JSON_FILES:
            raise ConfigurationError(
                f"[{file}] is no JSON array of up to {MAX_LINE:,} characters ({error}): give one object per line, "
                "`jq -c '.[]'`"
            ) from error
        yield from (_record(file, *line) for line in chain(read, lines))
        return
    yield from (row if isinstance(row, dict) else {"query": row} for row in rows)


def _record(file: Path, number: int, line: str) -> Mapping[str, Any]:
    """Return a line's JSON object, or the line as a query."""
    record = _json_object(line)
    if record is None and line.startswith("{") and {*file.suffixes} & _JSON_FILES:
        raise ConfigurationError(f"line {number} of [{file}] cannot be read as JSON: correct or delete it")
    return {"query": line} if record is None else record


def _json_object(text: str) -> dict[str, Any] | None:
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        found: dict[str, Any] = parsed_json(text)
    except ValueError:
        return None
    return found


def _source_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document of a hit as exports of an index have it, or the record itself."""
    source = record.get("_source")
    return source if isinstance(source, Mapping) else record


def _is_bulk_action(record: Mapping[str, Any]) -> bool:
    return len(record) == 1 and any(isinstance(record.get(action), Mapping) for action in _BULK_ACTIONS)


def _value_at(record: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path, whose names are nested or, in a column of CSV, joined by points."""
    if path in record:
        return record[path]
    name, _, rest = path.partition(".")
    inner = record.get(name)
    return _value_at(inner, rest) if rest and isinstance(inner, Mapping) else None


def _text_at(record: Mapping[str, Any], path: str) -> str:
    value = _value_at(record, path)
    return "" if value is None or isinstance(value, bool | dict | list) else str(value)


def _position(record: Mapping[str, Any]) -> int | None:
    for path in _POSITIONS:
        try:
            return int(float(_value_at(record, path)))
        except (OverflowError, TypeError, ValueError):
            continue
    return None
