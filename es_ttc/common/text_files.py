"""Files of text lines, CSV rows and JSON, read within limits, so that none takes all memory or all time."""

import csv
import gzip
import io
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, AnyStr, BinaryIO, cast

import orjson

from es_ttc.errors import ConfigurationError

MAX_LINE = 64 * 2**20  # bytes of a line, characters of a CSV row
MAX_COLUMNS = 10_000  # the engines take 1,000 fields by default
MAX_JSON_DEPTH = 200  # levels of JSON; orjson writes up to 254

_SKIPPED_AT_ONCE = 2**20
_GZIP = b"\x1f\x8b"


@contextmanager
def opened(file: Path, *, watch: Callable[[BinaryIO], object] | None = None) -> Iterator[BinaryIO]:
    """Yield a file's bytes, decompressed where gzip has compressed them; `watch` gets the file as it is on the disk."""
    try:
        with file.open("rb") as raw:
            if watch is not None:
                watch(raw)
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2).startswith(_GZIP) else raw
            if stream.peek(2).startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                raise ConfigurationError(f"file [{file}] is UTF-16: convert it, `iconv -f UTF-16 -t UTF-8`")
            yield cast("BinaryIO", stream)
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigurationError(f"file [{file}] cannot be read on: {error}") from error


def cut_lines(stream: BinaryIO, limit: int) -> Iterator[bytes]:
    """Yield the lines without a byte order mark; one above the limit is cut just above it."""
    for number, line in enumerate(_cut(stream.readline, limit, (b"\n",))):
        yield line if number else line.removeprefix(BOM_UTF8)


def byte_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of a file.

    Raises:
        ConfigurationError: The file cannot be read, or a line is too long.
    """
    with opened(file) as stream:
        for number, line in enumerate(cut_lines(stream, MAX_LINE), 1):
            if len(line) > MAX_LINE:
                raise ConfigurationError(f"line {number} of [{file}] is longer than {MAX_LINE:,} bytes: shorten it")
            yield number, line


def text_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a file as text, without their ends.

    Raises:
        ConfigurationError: The file cannot be read, or a line is too long or not UTF-8.
    """
    for number, line in byte_lines(file):
        try:
            yield number, line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ConfigurationError(_not_utf8(file, number)) from error


def whole_text(file: Path) -> str:
    """Return the text of a file that is as long as a line may be.

    Raises:
        ConfigurationError: The file cannot be read, or is too long or not UTF-8.
    """
    with opened(file) as stream:
        content = stream.read(MAX_LINE + 1)
    if len(content) > MAX_LINE:
        raise ConfigurationError(f"[{file}] is longer than {MAX_LINE:,} bytes: split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"[{file}] cannot be read as UTF-8, convert it (`iconv -t UTF-8`): {error}") from error


class CsvRows:
    """The rows of a CSV file below its header, each with the number of its last line, without blank ones.

    A header line without the delimiter that has semicolons is separated by these. Bytes that are not UTF-8 become lone
    surrogates. In place of a row that is not CSV, or longer than a line may be, there is an error.

    Raises:
        ConfigurationError: The header has too many columns or is no CSV.
    """

    def __init__(
        self, stream: BinaryIO, name: str, *, delimiter: str, quoted: bool = True, strict: bool = True
    ) -> None:
        csv.field_size_limit(MAX_LINE)  # the module's own limit of 128 KiB is below a long document
        self._text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        lines = _cut(self._text.readline, MAX_LINE, ("\n", "\r"))
        first = next(lines, "")
        self.delimiter = ";" if delimiter not in first and ";" in first else delimiter
        if (columns := first.count(self.delimiter) + 1) > MAX_COLUMNS:
            raise ConfigurationError(f"file [{name}] has {columns:,} columns: drop all but {MAX_COLUMNS:,} or fewer")
        self._lines = _LinesOfRows(chain([first], lines))
        self._reader = csv.reader(
            self._lines,
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
            strict=strict,
        )
        try:
            self.header = next(self._reader, [])
        except csv.Error as error:
            raise ConfigurationError(f"the first line of file [{name}] is not CSV: {error}") from error

    def __iter__(self) -> Iterator[tuple[int, list[str] | csv.Error]]:
        while True:
            self._lines.row_length = 0
            try:
                row = next(self._reader, None)
            except csv.Error as error:
                yield self._lines.number, error
                continue
            if row is None:
                return
            if row:
                yield self._lines.number, row


def csv_rows(file: Path, *, delimiter: str = ",", quoted: bool = True) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the rows of a file, the header first, with the numbers of their last lines.

    Raises:
        ConfigurationError: The file cannot be read, or a row is too long, no CSV or not UTF-8.
    """
    with opened(file) as stream:
        table = CsvRows(stream, str(file), delimiter=delimiter, quoted=quoted, strict=False)
        for number, row in chain([(1, table.header)], table):
            if isinstance(row, csv.Error):
                raise ConfigurationError(f"line {number} of [{file}] is not CSV: {row}")
            try:
                "".join(row).encode()
            except UnicodeEncodeError as error:
                raise ConfigurationError(_not_utf8(file, number)) from error
            yield number, row


def _not_utf8(file: Path, line: int) -> str:
    return f"line {line} of [{file}] cannot be read as UTF-8: convert the file, `iconv -t UTF-8`"


class _LinesOfRows:
    """Numbered lines for the csv module, which reads one row from several; too long a row is an error."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.number = 0
        self.row_length = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        self.row_length += len(line)
        if self.row_length > MAX_LINE:
            raise csv.Error(f"it is longer than {MAX_LINE:,} characters")
        return line


def parsed_json(raw: bytes | str) -> Any:
    """Return decoded JSON; a ValueError if it is none, or has too many levels."""
    value = orjson.loads(raw)
    require_depth(value)
    return value


def require_depth(value: Any) -> None:
    """Raise a ValueError for JSON of more than :data:`MAX_JSON_DEPTH` levels."""
    level: list[Any] = [[value]]
    for _ in range(MAX_JSON_DEPTH + 1):
        values = chain.from_iterable(outer.values() if isinstance(outer, dict) else outer for outer in level)
        level = [inner for inner in values if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError(f"it has more than {MAX_JSON_DEPTH} levels")


def _cut(readline: Callable[[int], AnyStr], limit: int, ends: tuple[AnyStr, ...]) -> Iterator[AnyStr]:
    """Yield lines; the rest of one above the limit is skipped when the next one is asked for."""
    while line := readline(limit + 1):
        yield line
        too_long = len(line) > limit
        while too_long and line and not line.endswith(ends):
            line = readline(_SKIPPED_AT_ONCE)
