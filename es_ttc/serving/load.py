"""What a search gives up while many others are answered, so that all are scored within their time.

A search that would wait too long for its scores goes down a ladder: it does without token vectors, then also without
candidates, and on the last rung the engine's own order is the answer. That is decided when the search begins. If all
that are being answered were whole searches, scoring would take their number times the time that a unit of work has
lately taken. If that is more than a part of the time for scoring, each search does as much less work.

Callers share what there is: a caller goes down as if all callers searched as much as it does.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import numpy as np

from es_ttc.serving.pool import work_for


class Rung(StrEnum):
    """What a search gives up; each rung also what those before it do."""

    FULL = "full"
    NO_TOKENS = "no_tokens"
    NO_CANDIDATES = "no_candidates"
    FIRST_PASS = "first_pass"


_RUNGS = tuple(Rung)
_WORK = (1.0, 0.5, 0.25, 0.1)
"""Processor time of gateway and engine on each rung, about, as a share of a blend's (docs/results/speed.md)."""
_PART = 0.4
"""Part of its time that scoring is to take on average; a search may take twice as long."""
_FEWEST = 4
"""Searches at a time that do not go down: they wait for the engine and other programs rather than for each other."""
_NEWEST = 0.1
"""Weight of the newest search in the moving average."""
_HALF_LIFE = 2.0
"""Seconds after which what was measured counts half: where no search is scored any more, some will be again."""


class Load:
    """The searches that a process answers, by caller, and the time that their work takes."""

    def __init__(self) -> None:
        self._searches: Counter[bytes] = Counter()
        self._work = 0.0  # of all of them; a blend's is 1
        self._seconds = 0.0  # that a unit of work took when it was measured last
        self._measured = 0.0
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
                self._work -= _WORK[_RUNGS.index(rung)]
            if not self._searches[caller]:
                del self._searches[caller]
            if not self._searches:
                self._work = 0.0  # sums of fractions are not exact

    def begin(self, caller: bytes, rung: Rung) -> None:
        """Count a search that begins."""
        self._searches[caller] += 1
        self._work += _WORK[_RUNGS.index(rung)]

    def scored(self, seconds: float) -> None:
        """Note the time of a search until it was scored, or late, without the engine's for the first pass."""
        if self._searches.total() > _FEWEST:
            known, self._measured = self._seconds_now, time.perf_counter()
            self._seconds = known + _NEWEST * (seconds / self._work - known)

    @property
    def _seconds_now(self) -> float:
        halves = (time.perf_counter() - self._measured) / _HALF_LIFE
        return self._seconds * math.exp2(-halves)

    def expected(self, caller: bytes) -> float:
        """Return the seconds that scoring would take for a caller without giving anything up; 0 for few searches."""
        searches = self._searches.total()
        if searches <= _FEWEST:
            return 0.0
        return self._seconds_now * min(searches, self._searches[caller] * len(self._searches))

    def rung(self, expected: float, seconds: float) -> Rung:
        """Return the rung of a search that has some seconds: between two, searches take one of them in turns."""
        place = self._rest + rungs_down(expected / seconds if seconds > 0 else math.inf)
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
        return self._load.rung(expected, seconds), expected

    def begin(self, rung: Rung) -> None:
        """Count a search on a rung."""
        self.rungs.append(rung)
        self._load.begin(self._caller, rung)


def rungs_down(share: float) -> float:
    """Return how many rungs a search goes down, 0 to 3, by the share of its time that scoring would take as a whole."""
    work = min(1.0, _PART / share) if share else 1.0
    return float(np.interp(-work, [-one for one in _WORK], range(len(_WORK))))
