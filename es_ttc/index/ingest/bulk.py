"""Write actions in bulks: batches of bounded size and time, a result for every item, retries for a busy engine."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol

import orjson

from es_ttc.engine.protocol import BulkItem, Engine
from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.index.ingest.bulk_errors import BulkErrorKind, is_temporary, refusal_of
from es_ttc.index.ingest.prepare import Prepared

_TOO_MUCH = (400, 413)  # statuses of a whole bulk that is rejected because of one of its documents, or of its size
_SETTLE_SECONDS = 5.0  # time that a cancelled write waits for the engine's response


class BulkAction(Protocol):
    """An action of a bulk."""

    @property
    def id(self) -> str:
        """The document's id."""

    @property
    def lines(self) -> Sequence[bytes]:
        """Its lines without newlines: the action, and the source if there is one."""


@dataclass(frozen=True, slots=True)
class ActionLines:
    """An action that is given by its lines."""

    id: str
    lines: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class DocumentAction:
    """One document to be indexed."""

    prepared: Prepared
    lines: tuple[bytes, bytes]
    empty: bool
    truncated: bool

    @property
    def id(self) -> str:
        """The document's id."""
        return self.prepared.id

    @property
    def nbytes(self) -> int:
        """Bytes in the bulk, newlines included."""
        return len(self.lines[0]) + len(self.lines[1]) + 2


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a batch."""

    bytes: int = 8 * 2**20
    actions: int = 1000
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retries while the engine cannot accept documents; each wait is twice as long as the one before."""

    seconds: float = 150.0
    attempts: int | None = None
    first_wait: float = 0.5
    max_wait: float = 30.0

    def wait(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt (from 1), random between half and all of the exponential wait."""
        doublings = min(attempt - 1, 60)  # a greater power would overflow a float
        return min(self.first_wait * 2.0**doublings, self.max_wait) * random.uniform(0.5, 1.0)  # noqa: S311

    def next_wait(self, attempt: int, spent: float) -> float | None:
        """Return the seconds to wait after an attempt, cut to the time limit; None after the last attempt."""
        if attempt == self.attempts or spent >= self.seconds:
            return None
        return min(self.wait(attempt), self.seconds - spent)


async def bulk_batches(
    queue: asyncio.Queue[Sequence[DocumentAction] | None], limits: BatchLimits
) -> AsyncIterator[list[DocumentAction]]:
    """Cut a queue of actions into batches, until None comes; no batch contains an id twice.

    Else a retry of the first action could restore the older of two documents.
    """
    clock = asyncio.get_running_loop().time
    batch: list[DocumentAction] = []
    ids: set[str] = set()
    size = 0
    deadline = 0.0
    while True:
        try:
            async with asyncio.timeout_at(deadline if batch else None):
                actions = await queue.get()
        except TimeoutError:
            actions = ()
        for action in actions or ():
            full = size + action.nbytes > limits.bytes or len(batch) == limits.actions
            if batch and (full or action.prepared.id in ids):
                yield batch
                batch, ids, size = [], set(), 0
            if not batch:
                deadline = clock() + limits.seconds
            batch.append(action)
            ids.add(action.prepared.id)
            size += action.nbytes
        if batch and (actions is None or clock() >= deadline):
            yield batch
            batch, ids, size = [], set(), 0
        if actions is None:
            return


async def write(
    engine: Engine, index: str, actions: Sequence[BulkAction], patience: RetryPolicy | None = None
) -> list[BulkItem]:
    """Write one batch, and return each action's result; retry temporarily rejected actions.

    Sending twice is safe: every action contains its document's id, or the expected version.
    """
    patience = patience or RetryPolicy()
    begun = time.monotonic()
    outcomes: dict[int, BulkItem] = {}
    pending = list(range(len(actions)))
    reason, status = "", None
    for attempt in count(1):
        try:
            items = await _send(engine, index, [actions[position] for position in pending])
        except EngineError as error:
            if not is_temporary(error):
                raise
            reason, status = str(error), error.upstream_status
        else:
            for position, item in zip(pending, items, strict=True):
                match refusal_of(item):
                    case BulkErrorKind.ALL:
                        raise EngineError(
                            f"{engine.name} refuses to write to [{index}]: {item.error}",
                            upstream_status=item.status,
                        )
                    case BulkErrorKind.TEMPORARY:
                        reason, status = item.error or "", item.status
                    case _:
                        outcomes[position] = replace(item, position=position)
            pending = [position for position in pending if position not in outcomes]
        if not pending:
            return [outcomes[position] for position in range(len(actions))]
        wait = patience.next_wait(attempt, time.monotonic() - begun)
        if wait is None:
            raise EngineUnavailable(
                f"{engine.name} took none of {len(pending)} documents in {attempt} attempts: {reason}",
                upstream_status=status,
            )
        await asyncio.sleep(wait)
    raise AssertionError("the attempts end in a return or in an error")


def record_lines(name: str, source: Mapping[str, Any]) -> ActionLines:
    """Return the action that writes a record of es-ttc itself, or replaces it."""
    return ActionLines(name, (orjson.dumps({"index": {"_id": name}}), orjson.dumps(source)))


async def write_records(engine: Engine, index: str, actions: Sequence[BulkAction]) -> None:
    """Write records of es-ttc itself; raise an error if one is rejected."""
    for item in await write(engine, index, actions):
        if item.error is not None:
            raise EngineError(f"the record [{item.id}] in [{index}] cannot be written: {item.error}")


async def _send(engine: Engine, index: str, actions: Sequence[BulkAction]) -> list[BulkItem]:
    """Send one bulk; if it is rejected as a whole, split it until the offending document is alone."""
    try:
        items = await _settled(engine.bulk(index, [line for action in actions for line in action.lines]))
    except EngineError as error:
        if error.upstream_status not in _TOO_MUCH:
            raise
        if len(actions) == 1:
            return [BulkItem(0, actions[0].id, error.upstream_status, str(error))]
        middle = len(actions) // 2
        return [
            *await _send(engine, index, actions[:middle]),
            *await _send(engine, index, actions[middle:]),
        ]
    if len(items) != len(actions):
        raise EngineError(f"{engine.name} answered {len(items)} of {len(actions)} actions of a bulk")
    return items


async def _settled(bulk: Coroutine[Any, Any, list[BulkItem]]) -> list[BulkItem]:
    """Return the results of a bulk; if the caller is cancelled, wait some seconds for the response first.

    The engine executes what it was sent: an index that the caller deletes would be created again.
    """
    sent = asyncio.ensure_future(bulk)
    try:
        return await asyncio.shield(sent)
    except asyncio.CancelledError:
        await asyncio.wait([sent], timeout=_SETTLE_SECONDS)
        if not sent.done():
            sent.cancel()
        elif not sent.cancelled():
            sent.exception()  # nobody asks for it
        raise
