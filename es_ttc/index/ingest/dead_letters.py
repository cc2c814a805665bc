"""The dead-letter file: every rejected document with the reason, one JSON object per line."""

import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

from es_ttc.common.exact_numbers import ExactNumber
from es_ttc.common.private_files import open_private, replacing
from es_ttc.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One rejected document."""

    sequence: int
    source: str
    number: int
    id: str | None
    status: int
    reason: str
    document: Any


class DeadLetters(Protocol):
    """Receives rejected documents."""

    def add(self, letter: DeadLetter) -> None:
        """Add a document."""

    def sync(self) -> None:
        """Make all documents added so far durable."""


class DeadLetterList:
    """Keeps rejected documents in memory, for callers with few of them."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []

    def add(self, letter: DeadLetter) -> None:
        """Add a document."""
        self.letters.append(letter)

    def sync(self) -> None:
        """Do nothing."""


class DeadLetterFile:
    """Appends rejected documents to a JSONL file, which is created for the first one."""

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self._run = run
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                raise _unwritable(self.path, error) from error

    def add(self, letter: DeadLetter) -> None:
        """Append a document."""
        entry = {
            "run": self._run,
            "sequence": letter.sequence,
            "source": letter.source,
            "line": letter.number,
            "id": letter.id,
            "status": letter.status,
            "reason": letter.reason,
            "document": letter.document,
        }
        line = _line(entry)
        try:
            if self._file is None:
                self._file = open_private(self.path, "ab")
            self._file.write(line)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def sync(self) -> None:
        """Write everything to disk."""
        if self._file is not None:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                raise _unwritable(self.path, error) from error

    def forget(self, position: int) -> frozenset[int]:
        """Remove this run's letters of documents that are read again; return the sequence numbers of the others."""
        if not self.path.exists():
            return frozenset()
        kept: set[int] = set()
        try:
            with self.path.open("rb") as old, replacing(self.path) as new:
                for line in old:
                    try:
                        entry = json.loads(line)
                    except ValueError:
                        if not line.endswith(b"\n"):  # a process was killed while it wrote the line
                            continue
                        entry = {}
                    own = entry.get("run") == self._run
                    if own and entry["sequence"] >= position:
                        continue
                    new.write(line)
                    if own:
                        kept.add(int(entry["sequence"]))
        except OSError as error:
            raise _unwritable(self.path, error) from error
        return frozenset(kept)


def _line(entry: Mapping[str, Any]) -> bytes:
    """Return one line of JSON, in ASCII: the standard library encodes lone surrogates, orjson rejects them."""
    mark = uuid.uuid4().hex
    numbers: list[str] = []

    def default(value: object) -> str:
        if not isinstance(value, ExactNumber):
            return str(value)
        numbers.append(value.text)
        return f"{mark}-{len(numbers) - 1}"

    text = json.dumps(entry, default=default)
    if numbers:
        text = re.sub(f'"{mark}-([0-9]+)"', lambda match: numbers[int(match[1])], text)
    return text.encode() + b"\n"


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"dead-letter file [{path}] cannot be written: {error.strerror}")
