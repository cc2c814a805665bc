"""The lines of a `_bulk` body, found while the body arrives.

An action line names the operation; `index`, `create` and `update` have a second line. The engines skip empty lines in
place of an action. From a line on that is no action, nothing is recognised: the engine refuses such a body.
"""

from typing import NamedTuple

import orjson

MAX_ACTION_BYTES = 64 * 1024
MAX_DOCUMENT_BYTES = 2 * 2**20
"""A longer document is passed in parts as it arrives, so it is never complete in memory."""

_WITH_DOCUMENT = frozenset({"index", "create", "update"})


class Action(NamedTuple):
    """An action line with a document.

    Attributes:
        operation: ``index``, ``create`` or ``update``.
        target: The index that it names; None for the one in the request's path.
        pipeline: The ingest pipeline that it names; None for that of the request.
    """

    operation: str
    target: str | None
    pipeline: str | None


class DocumentLine(NamedTuple):
    """The place of a document's line in a part of a body, which contains its action's line too."""

    action_start: int
    start: int
    end: int
    action: Action


class Part(NamedTuple):
    """A part of a body that ends with a line, or lies in a document that is too long.

    Attributes:
        data: Its bytes, unchanged.
        documents: The document lines in it, in order.
        long: The actions of the documents in it that are too long, or that end without a newline.
    """

    data: bytes
    documents: list[DocumentLine]
    long: list[Action]


class BulkLines:
    """Finds the document lines of one body. The parts together are the body, byte for byte."""

    def __init__(self) -> None:
        self._rest = b""
        self._action: Action | None = None
        self._inside_long = False
        self._lost = False

    def feed(self, chunk: bytes) -> Part:
        """Return the part of the body that is complete with a further chunk; it may be empty."""
        if self._lost:
            return Part(chunk, [], [])
        data = self._rest + chunk if self._rest else chunk
        self._rest = b""
        documents: list[DocumentLine] = []
        start = action_start = 0
        action, self._action = None, None
        while (newline := data.find(b"\n", start)) >= 0:
            end = newline + 1
            if self._inside_long:
                self._inside_long = False
            elif action is not None:
                documents.append(DocumentLine(action_start, start, end, action))
                action = None
            else:
                action_start = start
                try:
                    action = _read_action(data[start:newline])
                except ValueError:
                    self._lost = True
                    return Part(data, documents, [])
            start = end
        return self._cut(data, action_start if action is not None else start, start, action, documents)

    def end(self) -> Part:
        """Return the rest after the last newline; the engines accept none."""
        rest, self._rest = self._rest, b""
        unfinished = self._action is not None and not rest.endswith(b"\n")
        return Part(rest, [], [self._action] if unfinished and self._action is not None else [])

    def _cut(
        self, data: bytes, kept_from: int, start: int, action: Action | None, documents: list[DocumentLine]
    ) -> Part:
        """Return the complete lines, and keep the beginning of the next one, with its action, unless it is too long."""
        length = len(data) - start
        if self._inside_long:
            return Part(data, documents, [])
        if action is not None and length > MAX_DOCUMENT_BYTES:
            self._inside_long = True
            return Part(data, documents, [action])
        if action is None and length > MAX_ACTION_BYTES:
            self._lost = True
            return Part(data, documents, [])
        self._rest = data[kept_from:]
        self._action = action
        return Part(data[:kept_from], documents, [])


def _read_action(line: bytes) -> Action | None:
    """Return the action of a line; None for `delete`, which has no document, and for an empty line."""
    if not line.strip():
        return None
    try:
        [(operation, meta)] = orjson.loads(line).items()
        target, pipeline = meta.get("_index"), meta.get("pipeline")
    except AttributeError as error:
        raise ValueError("not an object") from error
    if operation == "delete":
        return None
    if operation not in _WITH_DOCUMENT or not isinstance(target, str | None) or not isinstance(pipeline, str | None):
        raise ValueError(operation)
    return Action(operation, target, pipeline)
