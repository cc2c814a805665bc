"""The checkpoint of an ingest: the number of leading records that are done, so that a stopped run can resume.

A record is done if the engine has acknowledged it, if it was unchanged, or if it is in the dead-letter file. The
checkpoint is only an optimisation: ids are deterministic and writing a document twice gives the same document, so
records beyond it are read again.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import orjson

from es_ttc.common.private_files import replacing
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.ingest.readers import STDIN, DocumentFiles

_SAMPLE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies a file whose records were counted."""

    name: str
    size: int
    modified: int
    sample: str

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the fingerprint of a file, or of a folder with its documents."""
        path = Path(name)
        status = path.stat()
        state = sha256()
        if path.is_dir():
            for _, document in DocumentFiles(name).rows():
                about = document.stat()
                state.update(f"{document} {about.st_size} {about.st_mtime_ns}\n".encode())
            return cls(name, 0, 0, state.hexdigest()[:32])
        with path.open("rb") as file:
            state.update(file.read(_SAMPLE))
            file.seek(max(status.st_size - _SAMPLE, 0))
            state.update(file.read(_SAMPLE))
        return cls(name, status.st_size, status.st_mtime_ns, state.hexdigest()[:32])


@dataclass(frozen=True, slots=True)
class IngestRunKey:
    """The properties that must be the same to resume a run; an index created again has another UUID."""

    index: str
    index_uuid: str
    encoder: str
    id_field: str | None
    inputs: tuple[Fingerprint, ...]

    def changed_since(self, earlier: Self) -> str | None:
        """Return what differs from an earlier run, as the subject of a sentence; None if nothing does."""
        if [each.name for each in self.inputs] != [each.name for each in earlier.inputs]:
            return f"the list of files ({', '.join(each.name for each in earlier.inputs)})"
        for now, then in zip(self.inputs, earlier.inputs, strict=True):
            if now != then:
                return f"file [{now.name}]"
        if (self.index, self.index_uuid) != (earlier.index, earlier.index_uuid):
            return f"index [{self.index}]"
        if self.encoder != earlier.encoder:
            return f"the encoder [{earlier.encoder}]"
        return f"the id field [{earlier.id_field}]" if self.id_field != earlier.id_field else None


class IngestCheckpoint:
    """The checkpoint's file, replaced as a whole by every save."""

    def __init__(self, path: Path, run: str, job: IngestRunKey, position: int = 0) -> None:
        self.path = path
        self.run = run
        self.job = job
        self.position = position

    @classmethod
    def load(cls, path: Path, job: IngestRunKey) -> Self | None:
        """Return the checkpoint of an unfinished run with the same key; None if there is no such file."""
        try:
            data = orjson.loads(path.read_bytes())
            inputs = tuple(Fingerprint(**each) for each in data["job"].pop("inputs"))
            earlier = cls(path, data["run"], IngestRunKey(**data["job"], inputs=inputs), data["position"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"checkpoint [{path}] cannot be read ({error}): run again without --resume") from error
        changed = job.changed_since(earlier.job)
        if changed:
            raise InvalidRequest(
                f"{changed} is not what it was in the run that [{path}] would resume: run again without --resume "
                "(documents that the index has already are skipped)"
            )
        return earlier

    def save(self, position: int) -> None:
        """Replace the file in one step."""
        data: dict[str, Any] = {"run": self.run, "position": position, "job": asdict(self.job)}
        try:
            with replacing(self.path) as file:
                file.write(orjson.dumps(data, option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise ConfigurationError(f"checkpoint [{self.path}] cannot be written: {error.strerror}") from error
        self.position = position

    def remove(self) -> None:
        """Delete the file after a finished run."""
        self.path.unlink(missing_ok=True)


def fingerprints(names: Sequence[str]) -> tuple[Fingerprint, ...] | None:
    """Return the files' fingerprints; None if one is standard input, which cannot be read twice."""
    return None if STDIN in names else tuple(Fingerprint.of(name) for name in names)


class CompletedPrefix:
    """The number of leading records that are done, while records finish in any order."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._ahead: set[int] = set()

    def add(self, sequence: int) -> None:
        """Mark one record as done; the position moves over all consecutive ones."""
        self._ahead.add(sequence)
        while self.position in self._ahead:
            self._ahead.remove(self.position)
            self.position += 1
