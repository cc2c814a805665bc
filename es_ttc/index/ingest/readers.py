"""Readers: JSONL, CSV and Parquet files, folders of documents, or JSONL on standard input, as a stream of records.

Memory use does not depend on the file's size. A line that cannot be decoded becomes a record with an error, so one bad
line does not end a run; a file that is damaged as a whole raises an exception.
"""

import base64
import csv
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Protocol

from es_ttc.common import exact_numbers
from es_ttc.common.text_files import MAX_LINE, CsvRows, cut_lines, opened, require_depth
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.ingest.columns import MAX_ROWS, ColumnType, WrongCell, convert, find_types
from es_ttc.index.ingest.titled_texts import TITLED_TEXTS, require_pypdf

STDIN = "-"
MAX_COUNTED_BYTES = 16 * 2**20  # bytes of a file, compressed ones as they are, that are read to count its records

_MAX_RAW_CHARACTERS = 2_000  # characters of an overlong line in its record
_PARQUET_ROWS = 256
_CHECKED_EVERY = 100


@dataclass(frozen=True, slots=True)
class Record:
    """One document as read, or why it could not be read."""

    source: str  # the file's name, `-` for standard input, "" for documents in memory
    number: int  # its line (JSONL, CSV: the last line of a row) or row (Parquet), from 1
    document: Mapping[str, Any] | None
    error: str | None = None
    raw: str | None = None  # the text that could not be decoded, or its beginning


class Source(Protocol):
    """An input of documents, read once."""

    @property
    def name(self) -> str:
        """The file's name as given; "" for documents in memory."""

    @property
    def fraction(self) -> float | None:
        """The share that has been read, 0 to 1; None if the size is unknown."""

    def rows(self) -> Iterator[tuple[int, Any]]:
        """Yield ``(number, raw row)`` without decoding."""

    def decode(self, number: int, raw: Any) -> Record:
        """Convert one raw row to a record."""


class Inputs:
    """Several sources as one stream, read once."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self._finished = 0
        self._rows: Iterator[tuple[Source, int, Any]] = self._chain()

    @property
    def fraction(self) -> float | None:
        """The share that has been read, 0 to 1, every source counted equally; None if a size is unknown."""
        if self._finished == len(self.sources):
            return 1.0
        current = self.sources[self._finished].fraction
        return None if current is None else (self._finished + current) / len(self.sources)

    def peek(self, count: int) -> list[Record]:
        """Return the first records; :meth:`records` yields them again."""
        rows = list(islice(self._rows, count))
        self._rows = chain(rows, self._rows)
        return [source.decode(number, raw) for source, number, raw in rows]

    def records(self, skip: int = 0) -> Iterator[Record]:
        """Yield the records of all sources; the first ``skip`` ones are skipped without being decoded."""
        for source, number, raw in islice(self._rows, skip, None):
            yield source.decode(number, raw)

    def _chain(self) -> Iterator[tuple[Source, int, Any]]:
        for source in self.sources:
            for number, raw in source.rows():
                yield source, number, raw
            self._finished += 1


def open_source(path: str, types: Mapping[str, ColumnType] | None = MappingProxyType({})) -> Source:
    """Return the reader for a file's name, for a folder of documents, or for ``-``."""
    if path == STDIN:
        return JsonLines(STDIN)
    file = Path(path)
    if file.is_dir() or (file.is_file() and file.suffix.lower() in TITLED_TEXTS):
        return DocumentFiles(path)
    if not file.is_file():
        raise InvalidRequest(f"there is no file [{path}] to ingest")
    suffixes = [suffix.lower() for suffix in file.suffixes]
    kind = suffixes[-2] if len(suffixes) > 1 and suffixes[-1] == ".gz" else (suffixes or [""])[-1]
    try:
        if kind in (".jsonl", ".ndjson"):
            return JsonLines(path)
        if kind in (".csv", ".tsv"):
            return Csv(path, delimiter="," if kind == ".csv" else "\t", types=types)
        if kind == ".parquet":
            return Parquet(path)
    except OSError as error:
        raise InvalidRequest(f"file [{path}] cannot be read: {error.strerror}") from error
    raise InvalidRequest(
        f"file [{path}] is of no known kind: give .jsonl, .ndjson, .csv, .tsv (each also .gz), .parquet, "
        f"{', '.join(TITLED_TEXTS)}, a folder of these last ones, or - for JSON lines on standard input"
    )


def count_records(inputs: Inputs) -> int | None:
    """Count the records of files by reading them anew, of a long one only the first part; None without a file."""
    total = 0
    for name in (source.name for source in inputs.sources):
        if name in ("", STDIN):
            return None
        source, most = open_source(name), MAX_COUNTED_BYTES / max(1, Path(name).stat().st_size)
        rows, share = 0, 1.0
        for rows, _ in enumerate(source.rows(), 1):
            if most < 1 and rows % _CHECKED_EVERY == 0 and (read := source.fraction or 0.0) > most:
                share = read
                break
        total += round(rows / share)
    return total


class Documents:
    """Documents in memory or from a generator."""

    name = ""

    def __init__(self, documents: Iterable[Mapping[str, Any]], total: int | None = None) -> None:
        self._documents = documents
        self._total = total
        self._read = 0

    @property
    def fraction(self) -> float | None:
        """Documents read of the total, if it was given."""
        return self._read / self._total if self._total else None

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the documents, numbered from 1."""
        for document in self._documents:
            self._read += 1
            yield self._read, document

    def decode(self, number: int, raw: Mapping[str, Any]) -> Record:
        """Convert one document to a record."""
        try:
            require_depth(raw)
        except ValueError as error:
            return Record(self.name, number, None, f"the document is wrong: {error}")
        return Record(self.name, number, raw)


class _TextFile:
    """A file of text, which gzip may have compressed, or standard input; counts the bytes read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._size = Path(name).stat().st_size if name != STDIN else None
        self._raw: BinaryIO | None = None
        self._position = 0

    @property
    def fraction(self) -> float | None:
        """Bytes read of the file's size; None on standard input."""
        if self._size is None:
            return None
        if self._raw is not None and not self._raw.closed:
            self._position = self._raw.tell()
        return min(self._position / self._size, 1.0) if self._size else 1.0

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """Yield the decompressed stream, and close the file afterwards."""
        if self.name == STDIN:
            yield sys.stdin.buffer
            return
        with opened(Path(self.name), watch=self._watch) as stream:
            yield stream

    def _watch(self, raw: BinaryIO) -> None:
        self._raw = raw


class JsonLines(_TextFile):
    """JSON objects, one per line. Blank lines are skipped; a byte order mark and CRLF are accepted.

    Numbers stay exact, also beyond 64 bits or with more digits than a double has.
    """

    def __init__(self, name: str, *, limit: int = MAX_LINE) -> None:
        super().__init__(name)
        self._limit = limit

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yield lines; an overlong one is cut to just above the limit."""
        with self._opened() as stream:
            for number, line in enumerate(cut_lines(stream, self._limit), 1):
                if line.strip():
                    yield number, line

    def decode(self, number: int, raw: bytes) -> Record:
        """Decode one line."""
        if len(raw) > self._limit:
            start = raw[:_MAX_RAW_CHARACTERS].decode("utf-8", "backslashreplace")
            return Record(self.name, number, None, f"the line is longer than {self._limit:,} bytes", start)
        try:
            document = exact_numbers.loads(raw)
            require_depth(document)
        except ValueError as error:
            text = raw.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
            return Record(self.name, number, None, f"the line is not JSON: {error}", text)
        if not isinstance(document, dict):
            text = raw.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
            return Record(self.name, number, None, "the line is JSON, but not an object", text)
        return Record(self.name, number, document)


class Csv(_TextFile):
    """Rows with a header line, UTF-8. An empty cell is an absent field.

    A header line without the delimiter that has semicolons is separated by these. Types of columns that are not given
    are found from the first rows; without `types` every value is text.
    """

    def __init__(
        self, name: str, *, delimiter: str = ",", types: Mapping[str, ColumnType] | None = MappingProxyType({})
    ) -> None:
        super().__init__(name)
        self._delimiter = delimiter
        self._given = types
        self._text: frozenset[str] = frozenset()
        self._header: list[str] = []
        self.types: Mapping[str, ColumnType] = {}

    def rows(self) -> Iterator[tuple[int, list[str] | csv.Error]]:
        """Yield rows below the header, without blank ones."""
        with self._opened() as stream:
            # Bytes that are not UTF-8 are lone surrogates, which are rejected row by row with a reason.
            table = CsvRows(stream, self.name, delimiter=self._delimiter)
            self._delimiter, self._header = table.delimiter, self._checked(table.header)
            rows = iter(table)
            begin = _beginning(rows) if self._given is not None else []
            self.types = self._found([row for _, row in begin if not isinstance(row, csv.Error)])
            yield from chain(begin, rows)

    def _found(self, rows: Sequence[list[str]]) -> Mapping[str, ColumnType]:
        if self._given is None:
            return dict.fromkeys(self._header, ColumnType.TEXT)
        if unknown := self._given.keys() - set(self._header):
            raise InvalidRequest(
                f"[--types] names column [{min(unknown)}], and file [{self.name}] has {', '.join(self._header)}"
            )
        kept = dict.fromkeys(self._text & set(self._header), ColumnType.TEXT)
        return {**find_types(self._header, rows), **kept, **self._given}

    def decode(self, number: int, raw: list[str] | csv.Error) -> Record:
        """Combine one row with the header."""
        if isinstance(raw, csv.Error):
            return Record(self.name, number, None, f"the row is not CSV: {raw}")
        if len(raw) != len(self._header):
            reason = f"the row has {len(raw)} cells, and the header {len(self._header)}"
            return Record(self.name, number, None, reason, self._delimiter.join(raw))
        try:
            document = {
                name: convert(name, cell, self.types[name])
                for name, cell in zip(self._header, raw, strict=True)
                if cell
            }
        except WrongCell as error:
            return Record(self.name, number, None, str(error), self._delimiter.join(raw))
        return Record(self.name, number, document)

    def keep_text(self, columns: Collection[str]) -> None:
        """Read some columns as text, whatever their cells look like; to be called before the first row is read."""
        self._text = frozenset(columns)

    def _checked(self, header: list[str]) -> list[str]:
        repeated = [name for name, count in Counter(header).items() if count > 1]
        if repeated:
            raise InvalidRequest(f"file [{self.name}] has two columns called [{min(repeated)}]: rename one")
        if "" in header:
            raise InvalidRequest(f"file [{self.name}] has a column without a name: its first line must name them all")
        return header


def _beginning(rows: Iterator[tuple[int, list[str] | csv.Error]]) -> list[tuple[int, list[str] | csv.Error]]:
    """Take the first rows: up to :data:`MAX_ROWS`, and no more when they are as long as a line may be."""
    begin, length = [], 0
    for number, row in islice(rows, MAX_ROWS):
        begin.append((number, row))
        length += 0 if isinstance(row, csv.Error) else sum(map(len, row))
        if length > MAX_LINE:
            break
    return begin


class Parquet:
    """Rows of a Parquet file; nulls are absent fields, decimals become numbers, bytes become base64."""

    def __init__(self, name: str) -> None:
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as error:
            raise ConfigurationError(
                f"reading [{name}] needs pyarrow: install it with `pip install 'es-ttc[parquet]'`"
            ) from error
        self.name = name
        try:
            self._file = parquet.ParquetFile(name)
        except ArrowException as error:
            raise InvalidRequest(f"file [{name}] is not Parquet: {error}") from error
        self._read = 0

    @property
    def fraction(self) -> float | None:
        """Rows read of the file's own count."""
        total = self._file.metadata.num_rows
        return self._read / total if total else 1.0

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield rows, numbered from 1."""
        with closing(self._file):
            for batch in self._file.iter_batches(batch_size=_PARQUET_ROWS):
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    self._read += 1
                    yield self._read, row

    def decode(self, number: int, raw: dict[str, Any]) -> Record:
        """Convert Arrow's values to JSON's."""
        return Record(self.name, number, {name: _json_value(value) for name, value in raw.items() if value is not None})


class DocumentFiles:
    """One document, or all below a folder in the order of their paths; the id of each is its path in the folder.

    Hidden files and files of other kinds are left out.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        path = Path(name)
        self._folder = path if path.is_dir() else path.parent
        self._files = sorted(filter(self._is_document, path.rglob("*"))) if path.is_dir() else [path]
        self._read = 0
        if not self._files:
            raise InvalidRequest(
                f"folder [{name}] has no file of {', '.join(TITLED_TEXTS)}: give files of other kinds by their names, "
                f"such as {name.rstrip('/')}/*.jsonl"
            )
        if any(file.suffix.lower() == ".pdf" for file in self._files):
            require_pypdf(name)

    @property
    def fraction(self) -> float:
        """Files read of all."""
        return self._read / len(self._files)

    def rows(self) -> Iterator[tuple[int, Path]]:
        """Yield the files, numbered from 1."""
        for number, file in enumerate(self._files, 1):
            self._read = number
            yield number, file

    def decode(self, number: int, raw: Path) -> Record:
        """Read a file; without a heading its name is the title."""
        try:
            title, text = TITLED_TEXTS[raw.suffix.lower()](raw)
        except ConfigurationError as error:
            return Record(self.name, number, None, str(error), str(raw))
        named = title or re.sub("[-_]+", " ", raw.stem)
        return Record(
            self.name, number, {"_id": raw.relative_to(self._folder).as_posix(), "title": named, "text": text}
        )

    def _is_document(self, file: Path) -> bool:
        hidden = any(part.startswith(".") for part in file.relative_to(self._folder).parts)
        return file.suffix.lower() in TITLED_TEXTS and not hidden and file.is_file()


def _json_value(value: Any) -> Any:
    match value:
        case Decimal():
            return exact_numbers.number(str(value))
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case dict():
            return {key: _json_value(item) for key, item in value.items()}
        case list():
            return [_json_value(item) for item in value]
    return value
