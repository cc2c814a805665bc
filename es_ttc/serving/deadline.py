"""Budgets of time: the result of work, or why it failed or was late."""

import asyncio
import math
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Self, TypeVar

from es_ttc.errors import DeadlineExceeded, EsTtcError, InvalidRequest
from es_ttc.serving.logs import log

T = TypeVar("T")

_TIME_TO_ANSWER_MS = 20.0
"""The part of the caller's own timeout that is reserved for the fallback."""


class ScoringError(EsTtcError):
    """A method failed, or returned invalid scores."""

    type = "ttc_scoring_exception"


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of the time that a part of a search may take, by `time.perf_counter`; by default there is none.

    Attributes:
        budget: The whole time, in seconds, of which a part may be over.
    """

    end: float = math.inf
    budget: float = math.inf

    @classmethod
    def within(cls, ms: float, *, timeout_ms: float | None, started: float, since: float | None = None) -> Self:
        """Return the end of a budget of time, early enough for the gateway to answer within the caller's own timeout.

        The budget begins at ``since``, by default now, and the caller's timeout when the request arrived, ``started``.
        """
        since = time.perf_counter() if since is None else since
        end = since + ms / 1000
        if timeout_ms is not None:
            end = min(end, started + (timeout_ms - _TIME_TO_ANSWER_MS) / 1000)
        return cls(end, max(0.0, end - since))

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return max(0.0, self.end - time.perf_counter())

    async def run(
        self, work: Awaitable[T], what: str, *, method: str, not_caught: type[Exception] = InvalidRequest
    ) -> T | EsTtcError:
        """Return the result of work (``what``, for messages), or the reason of its failure.

        An InvalidRequest is raised: the engine's own ranking would not answer it. So is a ``not_caught`` exception.
        """
        try:
            async with asyncio.timeout(self.left):
                return await work
        except (InvalidRequest, not_caught):
            raise
        except TimeoutError:
            budget = math.ceil(round(self.budget * 1000, 3))
            return DeadlineExceeded(f"{what} took longer than its budget of {budget} ms")
        except EsTtcError as error:
            return error
        except Exception as error:  # noqa: BLE001 - after any failure the engine's own ranking is returned
            log.error(f"{what} failed", method=method, exc_info=error)
            return ScoringError(f"{what} failed: {type(error).__name__}: {error}")
