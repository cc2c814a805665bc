"""The search's memory: an append-only file with one JSON record per line.

A record is on disk before the search continues. A process that is killed while it writes leaves an incomplete last
line: the next process that opens the file for writing removes it, and the generation is repeated. Written records never
change.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import orjson
from pydantic import ValidationError

from es_ttc.errors import ConfigurationError
from es_ttc.lab.discovery.records import Plan, Record

FILE = "memory.jsonl"


class SearchLog:
    """One search's memory, open for appending by this process only."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self._file = self.path.open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigurationError(f"another process runs the search in [{folder}]") from None
        try:
            whole = _cut(self._file.fileno())
            self.plan, self._records = _read(self.path, whole)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def records(self) -> Sequence[Record]:
        """All generations, oldest first."""
        return self._records

    def begin(self, plan: Plan) -> None:
        """Write the first line."""
        self._write(plan.model_dump(mode="json"))
        self.plan = plan

    def append(self, record: Record) -> None:
        """Write a generation; it is on disk when this returns."""
        self._write(record.model_dump(mode="json"))
        self._records.append(record)

    def _write(self, content: object) -> None:
        self._file.write(orjson.dumps(content) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read(folder: Path) -> tuple[Plan, list[Record]]:
    """Return a memory, also of a running search; an incomplete last line is left out."""
    path = folder / FILE
    try:
        content = path.read_bytes()
    except OSError:
        raise ConfigurationError(f"[{folder}] holds no search: start one with `es-ttc discover run`") from None
    plan, records = _read(path, content[: content.rfind(b"\n") + 1])
    if plan is None:
        raise ConfigurationError(f"[{path}] is empty: the search has not begun")
    return plan, records


def _cut(descriptor: int) -> bytes:
    """Remove an incomplete last line, and return the rest."""
    size = os.fstat(descriptor).st_size
    content = os.pread(descriptor, size, 0)
    whole = content.rfind(b"\n") + 1
    if whole != size:
        os.ftruncate(descriptor, whole)
        os.fsync(descriptor)
    return content[:whole]


def _read(path: Path, content: bytes) -> tuple[Plan | None, list[Record]]:
    plan: Plan | None = None
    records: list[Record] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            if number == 1:
                plan = Plan.model_validate_json(line)
            else:
                records.append(Record.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ConfigurationError(f"[{path}] line {number} is no record of a search: {first['msg']}") from error
    return plan, records
