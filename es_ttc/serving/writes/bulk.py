"""A `_bulk` body in which the documents of followed indices get their features, while it is passed on.

An action line names the operation; `index`, `create` and `update` have a second line. The engines skip empty lines in
place of an action. From a line on that is no action, nothing is recognised: the engine refuses such a body.

OpenSearch parses the documents of a `_bulk` that pass the same ingest pipelines together: one that it cannot parse has
all of them refused, while an index without a pipeline refuses that one alone. Documents of another pipeline are another
group. So the action of a malformed document names the index's final pipeline as its pipeline too: it is refused in the
engine's own words, and alone.
"""

import json
import re
from codecs import BOM_UTF8
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from es_ttc.serving.pool import Offload
from es_ttc.serving.writes.encoding import EncodingBudget, NotEncodedReason, Submitted
from es_ttc.serving.writes.targets import WriteTarget

MAX_ACTION_BYTES = 64 * 1024
MAX_DOCUMENT_BYTES = 2 * 2**20
"""A longer document is passed in parts as it arrives, so it is never complete in memory."""

_WITH_DOCUMENT = frozenset({"index", "create", "update"})
_MAX_AHEAD = 128
_BYTES_AHEAD = 4 * 2**20
"""Maximum number of documents of one body that are encoded ahead, and of the bytes that wait for them."""
_PIECE_BYTES = 2**20
_MAX_NAMES = 128
"""Maximum number of names of indices in a body that are looked up."""
_MAX_NAME_BYTES = 512
"""Bytes of a part of a body in which a name may begin that ends in the next part."""
_NAMES = re.compile(rb'"_index"\s*:\s*("[^"]*")')
TargetOf = Callable[[str], Awaitable[WriteTarget]]
_MAX_NAME = 50_000
_MAX_DIGITS = 1000
"""The engine's parser refuses longer names of fields, and longer numbers."""
_STRINGS = ("_index", "_id", "_routing", "_version_type")
_NUMBERS = ("_version", "_if_seq_no", "_if_primary_term")
"""Metadata that a pipeline takes from the document, and fails for all documents if the type is another one."""


class Action(NamedTuple):
    """An action line with a document, with the index and the ingest pipeline that it names."""

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

    `long` are the actions of the documents in it that are too long, or that end without a newline.
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
        self._rest, self._action = data[kept_from:], action
        return Part(data[:kept_from], documents, [])


def _read_action(line: bytes) -> Action | None:
    """Return the action of a line; None for `delete`, which has no document, and for an empty line."""
    if not line.strip():
        return None
    try:
        [(operation, meta)] = orjson.loads(line.removeprefix(BOM_UTF8)).items()
        target, pipeline = meta.get("_index"), meta.get("pipeline")
    except AttributeError as error:
        raise ValueError("not an object") from error
    if operation == "delete":
        return None
    if operation not in _WITH_DOCUMENT or not isinstance(target, str | None) or not isinstance(pipeline, str | None):
        raise ValueError(operation)
    return Action(operation, target, pipeline)


class IndexNames:
    """The names of indices in a body, as far as it has been read, and the one in the request's path.

    They are found without parsing, so that bulks to other indices are as fast as without this question. A key
    ``_index`` inside a document counts too.
    """

    def __init__(self, path_index: str | None, beginning: bytes) -> None:
        self._names = {} if path_index is None else {path_index: None}
        self._quoted: set[bytes] = set()
        self._end = b""
        self._add(beginning)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in the order of their first occurrence."""
        return iter([*self._names])

    async def watched(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the parts of the body unchanged, and note the names in them."""
        async for chunk in chunks:
            part = self._end + chunk
            self._add(part)
            self._end = part[-_MAX_NAME_BYTES:]
            yield chunk

    def _add(self, part: bytes) -> None:
        for quoted in _NAMES.findall(part):
            if quoted not in self._quoted and len(self._names) < _MAX_NAMES:
                self._quoted.add(quoted)
                with suppress(ValueError):
                    self._names[orjson.loads(quoted)] = None


class BulkBody:
    """Rewrites one body. Documents stay in their order, and all other bytes are unchanged."""

    def __init__(
        self, path_index: str | None, target_of: TargetOf, budget: EncodingBudget, offload: Offload | None
    ) -> None:
        self._path_index = path_index
        self._target_of = target_of
        self._budget = budget
        self._offload = offload
        self._targets: dict[str, WriteTarget] = {}
        self._ahead: deque[bytes | Submitted] = deque()
        self._documents = 0
        self._bytes = 0

    async def rewritten(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the body with features."""
        lines = BulkLines()
        try:
            async for chunk in chunks:
                await self._take(lines.feed(chunk))
                async for piece in self._ready(_MAX_AHEAD, _BYTES_AHEAD):
                    yield piece
            await self._take(lines.end())
            async for piece in self._ready(0, 0):
                yield piece
            self._budget.complete = True
        finally:
            for one in self._ahead:
                if isinstance(one, Submitted):
                    self._budget.release(one)

    async def _take(self, part: Part) -> None:
        """Put a part in the queue, with the documents of followed indices apart."""
        self._targets.clear()  # an index may change while a long body arrives
        sent = 0
        malformed = await self._malformed(part)
        for position, line in enumerate(part.documents):
            target = await self._target(line.action.target)
            if position in malformed:
                self._put(part.data[sent : line.action_start])
                self._put(_isolated(part.data[line.action_start : line.start], target.pipeline))
                sent = line.start
                if target.inline is not None:
                    self._budget.pending[NotEncodedReason.NO_OBJECT] += 1
            elif target.inline is not None:
                document = part.data[line.start : line.end]
                submitted = self._budget.submit(target.inline, line.action.operation, line.action.pipeline, document)
                if submitted is not None:
                    self._put(part.data[sent : line.start])
                    self._put(submitted)
                    sent = line.end
        for unread in part.long:
            if (await self._target(unread.target)).inline is not None:
                self._budget.pending[NotEncodedReason.SIZE] += 1
        self._put(part.data[sent:])

    async def _malformed(self, part: Part) -> frozenset[int]:
        """Return the positions of the documents that would make the engine refuse others."""
        if self._offload is None:
            return frozenset()
        lines = {
            position: part.data[line.start : line.end]
            for position, line in enumerate(part.documents)
            if line.action.operation != "update" and (await self._target(line.action.target)).pipeline
        }
        return await self._offload.run(sum(map(len, lines.values())), _malformed_in, lines)

    async def _target(self, name: str | None) -> WriteTarget:
        name = self._path_index if name is None else name
        if name is None:
            return WriteTarget()
        if name not in self._targets:
            self._targets[name] = await self._target_of(name)
        return self._targets[name]

    def _put(self, one: bytes | Submitted) -> None:
        if one:
            self._ahead.append(one)
            self._documents += isinstance(one, Submitted)
            self._bytes += len(one.line if isinstance(one, Submitted) else one)

    async def _ready(self, documents: int, nbytes: int) -> AsyncIterator[bytes]:
        """Yield what need not wait; wait until no more than some documents and bytes are left."""
        pieces: list[bytes] = []
        size = 0
        while self._ahead:
            one = self._ahead[0]
            if isinstance(one, Submitted):
                must_wait = self._documents > documents or self._bytes > nbytes
                if not one.result.done():
                    if not must_wait:
                        break
                    if pieces:
                        yield b"".join(pieces)
                        pieces, size = [], 0
                piece = await self._budget.result(one)
                self._budget.release(one)
                self._documents -= 1
                self._bytes -= len(one.line)
            else:
                piece = one
                self._bytes -= len(one)
            self._ahead.popleft()
            pieces.append(piece)
            size += len(piece)
            if size >= _PIECE_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
        if pieces:
            yield b"".join(pieces)


def _malformed_in(lines: Mapping[int, bytes]) -> frozenset[int]:
    return frozenset(key for key, line in lines.items() if _is_malformed(line))


def _isolated(action: bytes, pipeline: str) -> bytes:
    """Return an action's line that names a pipeline, whichever it named before."""
    [(operation, meta)] = orjson.loads(action.removeprefix(BOM_UTF8)).items()
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
    document = dict(pairs)
    if len(document) != len(pairs) or any(len(name) > _MAX_NAME for name in document):
        raise ValueError("a key twice, or too long")
    return document


def _number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("a number that is too long")
    return 0


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_number, parse_float=_number, parse_constant=_refuse)
