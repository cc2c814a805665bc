"""A `_bulk` body in which the documents of followed indices get their features, while it is passed on."""

import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import islice

import orjson

from es_ttc.serving.pool import Offload
from es_ttc.serving.writes.allowance import Allowance
from es_ttc.serving.writes.batches import Submitted
from es_ttc.serving.writes.bulk_lines import BulkLines, Part
from es_ttc.serving.writes.documents import Pending
from es_ttc.serving.writes.followed_indices import FollowedIndex, PipelineIndex
from es_ttc.serving.writes.malformed import isolated, malformed_in

_MOST_AHEAD = 128
_BYTES_AHEAD = 4 * 2**20
"""Maximum number of documents of one body that are encoded ahead, and of the bytes that wait for them."""
_PIECE_BYTES = 2**20
_MOST_NAMES = 32
"""Maximum number of names in the beginning of a body that are looked up."""
_NAMES = re.compile(rb'"_index"\s*:\s*("[^"]*")')

Follow = Callable[[str], Awaitable[PipelineIndex | None]]


def names_in(beginning: bytes, path_index: str | None) -> list[str]:
    """Return the names of indices in the beginning of a body, and the one in the request's path.

    They are found without parsing, so that bulks to other indices are as fast as without this question. A key
    ``_index`` inside a document counts too.
    """
    names = [] if path_index is None else [path_index]
    for quoted in islice(dict.fromkeys(_NAMES.findall(beginning)), _MOST_NAMES):
        with suppress(ValueError):
            names.append(orjson.loads(quoted))
    return names


class BulkBody:
    """Rewrites one body. Documents stay in their order, and all other bytes are unchanged."""

    def __init__(self, path_index: str | None, follow: Follow, allowance: Allowance, offload: Offload | None) -> None:
        self._path_index = path_index
        self._follow = follow
        self._allowance = allowance
        self._offload = offload
        self._names: dict[str, PipelineIndex | None] = {}
        self._ahead: deque[bytes | Submitted] = deque()
        self._documents = 0
        self._bytes = 0

    async def rewritten(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the body with features."""
        lines = BulkLines()
        try:
            async for chunk in chunks:
                await self._take(lines.feed(chunk))
                async for piece in self._ready(_MOST_AHEAD, _BYTES_AHEAD):
                    yield piece
            await self._take(lines.end())
            async for piece in self._ready(0, 0):
                yield piece
            self._allowance.written.complete = True
        finally:
            for one in self._ahead:
                if isinstance(one, Submitted):
                    self._allowance.release(one)

    async def _take(self, part: Part) -> None:
        """Put a part in the queue, with the documents of followed indices apart."""
        self._names.clear()  # an index may change while a long body arrives
        sent = 0
        malformed = await self._malformed(part)
        for position, line in enumerate(part.documents):
            index = await self._index_of(line.action.target)
            if index is None:
                continue
            if position in malformed:
                action = isolated(part.data[line.action_start : line.start], index.pipeline)
                self._put(part.data[sent : line.action_start])
                self._put(action)
                sent = line.start
                if isinstance(index, FollowedIndex):
                    self._allowance.written.pending[Pending.NO_OBJECT] += 1
            elif isinstance(index, FollowedIndex):
                document = part.data[line.start : line.end]
                submitted = self._allowance.submit(index, line.action.operation, line.action.pipeline, document)
                if submitted is not None:
                    self._put(part.data[sent : line.start])
                    self._put(submitted)
                    sent = line.end
        for unread in part.long:
            if isinstance(await self._index_of(unread.target), FollowedIndex):
                self._allowance.written.pending[Pending.SIZE] += 1
        self._put(part.data[sent:])

    async def _malformed(self, part: Part) -> frozenset[int]:
        """Return the positions of the documents that would make the engine refuse others."""
        if self._offload is None:
            return frozenset()
        lines = {
            position: part.data[line.start : line.end]
            for position, line in enumerate(part.documents)
            if line.action.operation != "update" and await self._index_of(line.action.target) is not None
        }
        return await self._offload.run(sum(map(len, lines.values())), malformed_in, lines)

    async def _index_of(self, name: str | None) -> PipelineIndex | None:
        name = self._path_index if name is None else name
        if name is None:
            return None
        if name not in self._names:
            self._names[name] = await self._follow(name)
        return self._names[name]

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
                piece = await self._allowance.result(one)
                self._allowance.release(one)
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
