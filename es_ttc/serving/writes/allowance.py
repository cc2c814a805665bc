"""What one request may spend on the encoding of its documents: time, and bytes that are added to its body."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from es_ttc.serving.writes.batches import EncodingBatches, Submitted
from es_ttc.serving.writes.documents import Pending
from es_ttc.serving.writes.followed_indices import FollowedIndex
from es_ttc.serving.writes.request import NO_PIPELINE


@dataclass(slots=True)
class Written:
    """How the documents of one request were sent."""

    encoded: int = 0
    pending: Counter[Pending] = field(default_factory=Counter)
    complete: bool = False

    @property
    def any(self) -> bool:
        """Whether any document was of a followed index."""
        return bool(self.encoded or self.pending)

    @property
    def all_encoded(self) -> bool:
        """Whether all documents of followed indices were encoded."""
        return self.complete and not self.pending


class Allowance:
    """Encodes the documents of one request, as long as its time and bytes last."""

    def __init__(self, batches: EncodingBatches, pipeline: str | None, seconds: float, added_bytes: int) -> None:
        self.written = Written()
        self._batches = batches
        self._pipeline = pipeline
        self._seconds = seconds
        self._left = added_bytes

    def submit(self, index: FollowedIndex, operation: str, pipeline: str | None, line: bytes) -> Submitted | None:
        """Begin to encode a document; return None if it is sent as it came, which is counted."""
        named = self._pipeline if pipeline is None else pipeline
        submitted: Submitted | Pending
        if operation == "update":
            submitted = Pending.UPDATE
        elif index.final_pipeline or (index.own_pipeline if named is None else named != NO_PIPELINE):
            submitted = Pending.PIPELINE
        elif self._seconds <= 0:
            submitted = Pending.LATE
        elif self._left <= 0:
            submitted = Pending.SIZE
        else:
            submitted = self._batches.submit(index, line)
        if isinstance(submitted, Pending):
            self.written.pending[submitted] += 1
            return None
        return submitted

    async def result(self, submitted: Submitted) -> bytes:
        """Return the document with its features, or as it came if it has none in time."""
        if not submitted.result.done() and self._seconds > 0:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            await asyncio.wait((submitted.result,), timeout=self._seconds)
            self._seconds -= loop.time() - begun
        result = submitted.result.result() if submitted.result.done() else Pending.LATE
        if isinstance(result, Pending):
            self.written.pending[result] += 1
            return submitted.line
        added = len(result) - len(submitted.line)
        if added > self._left:
            self._left = 0
            self.written.pending[Pending.SIZE] += 1
            return submitted.line
        self._left -= added
        self.written.encoded += 1
        return result

    def release(self, submitted: Submitted) -> None:
        """Forget a document whose result is sent, or not needed."""
        self._batches.release(submitted)
