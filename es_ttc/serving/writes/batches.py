"""Documents of concurrent requests, encoded together.

While a batch is encoded, the documents that arrive wait, and become the next batch. So a single document is encoded at
once on an idle gateway, and many requests share the encoder's calls on a busy one.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import islice

from es_ttc.serving.features.encoding import Encoders
from es_ttc.serving.logs import log
from es_ttc.serving.pool import BoundedPool, work_of
from es_ttc.serving.writes.documents import Pending, with_features
from es_ttc.serving.writes.followed_indices import FollowedIndex

_KIND = "write"
_MOST_TOGETHER = 32
_BYTES_TOGETHER = 16 * 1024
"""Maximum number of documents, and of their bytes, per call of the encoder: searches are encoded in between."""
_MOST_OUTSTANDING = 1024
_BYTES_OUTSTANDING = 64 * 2**20
"""Maximum number of documents, and of their bytes, that are waiting or encoded and not yet sent."""
_RETRY_SECONDS = 5.0
"""Time after a failure of an encoder in which no documents of its index are encoded."""


@dataclass(slots=True, eq=False)
class Submitted:
    """A document that is being encoded."""

    line: bytes
    result: asyncio.Future[bytes | Pending]


class EncodingBatches:
    """Encodes documents in batches, for one index at a time in the order of arrival.

    Attributes:
        outstanding: Number of documents that are waiting, or encoded and not yet released.
    """

    def __init__(self, encoders: Encoders, pool: BoundedPool) -> None:
        self._encoders = encoders
        self._pool = pool
        self._waiting: dict[FollowedIndex, deque[Submitted]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.outstanding = 0
        self._bytes = 0
        self._failed: dict[str, float] = {}

    def submit(self, index: FollowedIndex, line: bytes) -> Submitted | Pending:
        """Begin to encode a document; :meth:`release` must be called when its result is sent, or not needed.

        Returns:
            The document, or the reason why it is not encoded.
        """
        if self.outstanding >= _MOST_OUTSTANDING or self._bytes + len(line) > _BYTES_OUTSTANDING:
            return Pending.BUSY
        loop = asyncio.get_running_loop()
        if self._failed.get(index.spec.encoder.key, 0.0) > loop.time():
            return Pending.ENCODER
        submitted = Submitted(line, loop.create_future())
        self.outstanding += 1
        self._bytes += len(line)
        waiting = self._waiting.get(index)
        if waiting is None:
            self._waiting[index] = deque((submitted,))
            task = asyncio.create_task(self._encode_waiting(index))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        else:
            waiting.append(submitted)
        return submitted

    def release(self, submitted: Submitted) -> None:
        """Forget a document; if its encoding has not begun, it is not encoded."""
        submitted.result.cancel()
        self.outstanding -= 1
        self._bytes -= len(submitted.line)

    async def _encode_waiting(self, index: FollowedIndex) -> None:
        """Encode an index's documents until none is waiting."""
        waiting = self._waiting[index]
        while waiting:
            await asyncio.sleep(0)  # documents of the same request, or of others that are being read, join
            batch = _next_batch(waiting)
            if batch:
                await self._encode(index, batch)
        del self._waiting[index]

    async def _encode(self, index: FollowedIndex, batch: list[Submitted]) -> None:
        results: list[bytes | Pending]
        try:
            encoder = await self._encoders.serving(index.spec.encoder.key, index.name)
            lines = [one.line for one in batch]
            with work_of(_KIND):
                results = await self._pool.run(with_features, lines, index.spec, index.key, encoder)
        except Exception as error:  # noqa: BLE001 - an encoder may fail in any way; the documents go in as they came
            log.warning("documents could not be encoded", index=index.name, problem=f"{type(error).__name__}: {error}")
            self._failed[index.spec.encoder.key] = asyncio.get_running_loop().time() + _RETRY_SECONDS
            results = [Pending.ENCODER] * len(batch)
        for one, result in zip(batch, results, strict=True):
            if not one.result.done():
                one.result.set_result(result)


def _next_batch(waiting: deque[Submitted]) -> list[Submitted]:
    """Take the next documents that are still needed."""
    batch: list[Submitted] = []
    size = 0
    for one in list(islice(waiting, _MOST_TOGETHER)):
        if batch and size + len(one.line) > _BYTES_TOGETHER:
            break
        waiting.popleft()
        if not one.result.done():
            batch.append(one)
            size += len(one.line)
    return batch
