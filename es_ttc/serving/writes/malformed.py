"""Malformed documents of a `_bulk`, kept apart from the others.

OpenSearch parses the documents of a `_bulk` that pass the same ingest pipelines together: one that it cannot parse has
all of them refused, while an index without a pipeline refuses that one alone. Documents of another pipeline are another
group. So the action of a malformed document names the index's final pipeline as its pipeline too: it is refused in the
engine's own words, and alone.
"""

import json
from collections.abc import Mapping
from typing import Any

import orjson

_MAX_NAME = 50_000
_MAX_DIGITS = 1000
"""The engine's parser refuses longer names of fields, and longer numbers."""
_STRINGS = ("_index", "_id", "_routing", "_version_type")
_NUMBERS = ("_version", "_if_seq_no", "_if_primary_term")
"""Metadata that a pipeline takes from the document, and fails for all documents if the type is another one."""


def malformed_in(lines: Mapping[int, bytes]) -> frozenset[int]:
    """Return the keys of the lines that the engine cannot parse before the pipeline."""
    return frozenset(key for key, line in lines.items() if _is_malformed(line))


def isolated(action: bytes, pipeline: str) -> bytes:
    """Return an action's line that names a pipeline, whichever it named before."""
    [(operation, meta)] = orjson.loads(action).items()
    return orjson.dumps({operation: {**meta, "pipeline": pipeline}}) + b"\n"


def _is_malformed(line: bytes) -> bool:
    try:
        text = line.decode("utf-8-sig").strip()
        document, _ = _DECODER.raw_decode(text)  # the engine, too, does not read what follows the object
    except json.JSONDecodeError as error:
        return error.doc[error.pos : error.pos + 1] != "/"  # a comment, which the engine reads
    except (ValueError, RecursionError):
        return True
    if not isinstance(document, dict):
        return True
    return any(not isinstance(document.get(name, ""), str) for name in _STRINGS) or any(
        type(document.get(name, 0)) is not int for name in _NUMBERS
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    if any(len(name) > _MAX_NAME for name in found):
        raise ValueError("a name that is too long")
    return found


def _number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("a number that is too long")
    return 0


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_number, parse_float=_number, parse_constant=_refuse)
