"""A model's revision: a hash of the files that its vectors depend on, cached until a file changes."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from es_ttc.common.configuration_files import read_json_file
from es_ttc.errors import ConfigurationError

logger = logging.getLogger(__name__)

DIGITS = 12
ADAPTER_CONFIG = "adapter_config.json"  # a folder with this file is an adapter, not a part of the model
# The first kind in a folder identifies the model: the others are derived from it.
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.onnx")
_TOKENIZER = ("tokenizer.json",)
_POOLING = ("*_Pooling/config.json",)
PROJECTION = "_Dense"  # the end of the name of a projection's folder


class FileHashes:
    """SHA-256 of files by path, size and time, kept in the cache folder's ``file-hashes.json`` if it can be written."""

    def __init__(self, cache_dir: Path) -> None:
        self._store = cache_dir / "file-hashes.json"

    def sha256(self, path: Path) -> str:
        """Return the file's SHA-256 in hexadecimal digits."""
        state = path.stat()
        key = str(path.resolve())
        stamp = [state.st_size, state.st_mtime_ns]
        stored = self._load()
        entry = stored.get(key)
        if isinstance(entry, list) and entry[:2] == stamp and len(entry) == 3:
            return str(entry[2])
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._save(stored | {key: [*stamp, digest]})
        return digest

    def _load(self) -> dict[str, object]:
        try:
            stored = read_json_file(self._store)
        except ConfigurationError:
            return {}
        return stored if isinstance(stored, dict) else {}

    def _save(self, stored: dict[str, object]) -> None:
        try:
            self._store.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self._store.parent, prefix=self._store.name, delete=False
            ) as file:
                json.dump(stored, file)
            os.replace(file.name, self._store)  # noqa: PTH105 - the temporary file has a name, no Path
        except OSError as error:
            logger.warning("file hashes are not kept in %s: %s", self._store, error)


def revision(folder: Path, hashes: FileHashes, *, projected: bool = False) -> str:
    """Return the revision of a model folder: of weights, tokenizer and pooling, without other files."""
    weights = next((found for pattern in _WEIGHTS if (found := _files(folder, [pattern]))), [])
    if projected:
        weights = _with_backbone(folder, weights)
    if not weights:
        raise ConfigurationError(f"model folder [{folder}] has no weights: none of {', '.join(_WEIGHTS)} is there")
    tokenizer = _files(folder, _TOKENIZER)
    if not tokenizer:
        raise ConfigurationError(
            f"model folder [{folder}] has no tokenizer.json, which character offsets need: save the model with a fast "
            f"tokenizer"
        )
    total = hashlib.sha256()
    for path in [*weights, *tokenizer, *_files(folder, _POOLING)]:
        total.update(f"{path.relative_to(folder).as_posix()} {hashes.sha256(path)}\n".encode())
    return total.hexdigest()[:DIGITS]


def _with_backbone(folder: Path, weights: list[Path]) -> list[Path]:
    """Return weights with those of the backbone, where the first kind in the folder is that of the projection alone."""
    for pattern in _WEIGHTS[1:]:
        if any(not path.parent.name.endswith(PROJECTION) for path in weights):
            break
        weights = [*weights, *(path for path in _files(folder, [pattern]) if path not in weights)]
    return weights


def _files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    found = (path for pattern in patterns for path in folder.rglob(pattern) if path.is_file())
    return sorted(path for path in found if path.parent == folder or not (path.parent / ADAPTER_CONFIG).is_file())
