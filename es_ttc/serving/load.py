"""What a search gives up while many others are answered, so that all are scored within their time.

A search that would wait too long for its scores goes down a ladder: it does without token vectors, then also without
candidates, and on the last rung the engine's own order is the answer. That is decided when the search begins. If all
that are being answered were whole searches, they would take their number times the time that a unit of work has lately
taken. If that is more than a part of the time for scoring, each search does as much less work. What the engine takes
for first pass and page counts as far as it is more than while few search: then it waits for the same processors. The
work that has begun counts too: of many searches that come at once, the first ones are whole.

Callers share what there is: a caller goes down as if all callers searched as much as it does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from es_ttc.serving.pool import work_for


class Rung(StrEnum):
    """What a search gives up; each rung also what those before it do."""

    FULL = "full"
    NO_TOKENS = "no_tokens"
    NO_CANDIDATES = "no_candidates"
    FIRST_PASS = "first_pass"


_RUNGS = tuple(Rung)
_WORK: Mapping[Rung, float] = {Rung.FULL: 1.0, Rung.NO_TOKENS: 0.5, Rung.NO_CANDIDATES: 0.25, Rung.FIRST_PASS: 0.1}
"""Processor time of gateway and engine on each rung, about, as a share of a blend's (docs/results/speed.md)."""
_WHOLE = (0.45, 0.85, 1.4, 1.8, 4.5), (0, 1, 2, 2, 3)
"""By the share of the time for scoring that searches would take if all were whole: how many rungs they go down.

What they do then takes .4 of the time on average, and .45 before the first one is not scored.
"""
_AHEAD = (0.3, 0.4, 0.5, 0.9, 1.1), (0, 1, 2, 2, 3)
"""The same by the share of its time that the work takes which has begun; for many searches that come at once."""
_FEWEST = 4
"""Searches at a time that do not go down: they wait for the engine and other programs rather than for each other."""
_NEWEST = 0.1
"""Weight of the newest search in the moving average."""
_FORGOTTEN = 0.002
"""Share of what was measured that each search which is not scored takes away: without it, none might be again."""


class Expected(NamedTuple):
    """Seconds that a search is expected to take: if all were whole ones, and for the work that has begun."""

    whole: float
    ahead: float


class Load:
    """The searches that a process answers, by caller, and the time that their work takes."""

    def __init__(self) -> None:
        self._searches: Counter[bytes] = Counter()
        self._rungs: Counter[Rung] = Counter()
        self._seconds = 0.0  # that a unit of work has lately taken
        self._engine = 0.0  # seconds that the engine takes for a search while there are few
        self._rest = 0.0

    @contextmanager
    def of(self, caller: bytes) -> Iterator["CallerLoad"]:
        """Return the load of one request of a caller until it is answered; its work takes turns with others'."""
        load = CallerLoad(self, caller)
        try:
            with work_for(caller):
                yield load
        finally:
            for rung in load.rungs:
                self._searches[caller] -= 1
                self._rungs[rung] -= 1
            if not self._searches[caller]:
                del self._searches[caller]

    def begin(self, caller: bytes, rung: Rung) -> None:
        """Count a search that begins."""
        self._searches[caller] += 1
        self._rungs[rung] += 1
        if rung is Rung.FIRST_PASS:
            self._seconds *= 1 - _FORGOTTEN

    @property
    def _work(self) -> float:
        """The work of all searches; a blend's is 1."""
        return sum(_WORK[rung] * count for rung, count in self._rungs.items())

    def answered(self, seconds: float, engine: float) -> None:
        """Note the time of a search until its page was read, and how much of it the engine took."""
        if self._searches.total() <= _FEWEST:
            self._engine += _NEWEST * (engine - self._engine) if self._engine else engine
        else:
            seconds -= min(engine, self._engine)
            self._seconds += _NEWEST * (seconds / self._work - self._seconds)

    def expected(self, caller: bytes) -> Expected:
        """Return the times of a caller's search; 0 for few searches."""
        searches = self._searches.total()
        if searches <= _FEWEST:
            return Expected(0.0, 0.0)
        fair = min(searches, self._searches[caller] * len(self._searches))
        return Expected(self._seconds * fair, self._seconds * self._work * fair / searches)

    def rung(self, expected: Expected, seconds: float) -> Rung:
        """Return the rung of a search that has some seconds: between two, searches take one of them in turns."""
        place = self._rest + rungs_down(expected, seconds)
        whole = min(int(place), len(_RUNGS) - 1)
        self._rest = min(place - whole, 1.0)
        return _RUNGS[whole]


class CallerLoad:
    """The searches of one request."""

    def __init__(self, load: Load, caller: bytes) -> None:
        self._load = load
        self._caller = caller
        self.rungs: list[Rung] = []

    def rung(self, seconds: float) -> tuple[Rung, float]:
        """Return the rung of a search that has some seconds for scoring, and how many it would take as a whole."""
        expected = self._load.expected(self._caller)
        return self._load.rung(expected, seconds), expected.whole

    def begin(self, rung: Rung) -> None:
        """Count a search on a rung."""
        self.rungs.append(rung)
        self._load.begin(self._caller, rung)


def rungs_down(expected: Expected, seconds: float) -> float:
    """Return how many rungs a search goes down, 0 to 3, that has some seconds for scoring."""
    if seconds <= 0:
        return len(_RUNGS) - 1
    return float(max(np.interp(expected.whole / seconds, *_WHOLE), np.interp(expected.ahead / seconds, *_AHEAD)))
