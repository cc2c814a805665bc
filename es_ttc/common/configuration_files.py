"""Files of configuration: regular ones of bounded size, of which each fault is a ConfigurationError with the fix."""

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

from es_ttc.common.text_files import require_depth
from es_ttc.errors import ConfigurationError

MAX_FILE_BYTES = 16 * 2**20


def read_bytes(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a file, which may be absent."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigurationError(f"[{path}] is no regular file: name one")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ConfigurationError(f"[{path}] cannot be read: {error.strerror}; make it readable") from error
    if len(content) > limit:
        raise ConfigurationError(f"[{path}] is longer than {limit:,} bytes: name another file")
    return content


def read_text(path: Path) -> str:
    """Return the text of a file."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"[{path}] is not UTF-8: {error}; convert it") from error


def read_json_file(path: Path) -> Any:
    """Return the content of a JSON file."""
    try:
        found = json.loads(read_text(path))
        require_depth(found)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"[{path}] is not valid JSON: {error}; correct the file") from error
    return found


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """Return the content of a TOML file, and its text."""
    text = read_text(path)
    try:
        found = tomllib.loads(text)
        require_depth(found)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"[{path}] is no valid TOML: {error}; correct the file") from error
    return found, text
