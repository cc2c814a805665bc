"""Long steps on an event loop: few at a time, so that a short request waits for these and not for all.

Without it, the answers of an engine to fifty searches are worked on in one iteration of the loop, each for up to a
millisecond.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

_SECONDS = 0.002
"""Time that the steps of one iteration of the loop are to take together, up to twice as long."""
_MOST = 16


@dataclass(slots=True)
class _Turns:
    """The tasks that wait for their step, and how many may begin theirs in one iteration."""

    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    at_once: int = 1
    since: float = field(default_factory=time.perf_counter)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()
"""By event loop; one in which no step has begun in this iteration and none waits has no entry."""


async def long_step() -> None:
    """Wait until this task may begin a step that takes long beside those of other requests."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        _turns[loop] = turns = _Turns()
        loop.call_soon(_begin_next, loop, turns)
        return
    turn = loop.create_future()
    turns.waiting.append(turn)
    await turn


def _begin_next(loop: asyncio.AbstractEventLoop, turns: _Turns) -> None:
    """Let the next tasks go on; more if those of the last iteration took little time together."""
    now = time.perf_counter()
    took, turns.since = now - turns.since, now
    if took < _SECONDS:
        turns.at_once = min(2 * turns.at_once, _MOST)
    elif took > 2 * _SECONDS:
        turns.at_once = max(1, turns.at_once // 2)
    begun = 0
    while turns.waiting and begun < turns.at_once:
        turn = turns.waiting.popleft()
        if not turn.done():  # its task was cancelled
            turn.set_result(None)
            begun += 1
    if begun:
        loop.call_soon(_begin_next, loop, turns)
    else:
        del _turns[loop]
