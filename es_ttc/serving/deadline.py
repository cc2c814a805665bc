"""Budgets of time, and the fallback to the engine's own ranking if a method fails or is late."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from es_ttc.errors import DeadlineExceeded, EsTtcError, InvalidRequest
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import Metrics

T = TypeVar("T")

_TIME_TO_ANSWER_MS = 20.0
"""The part of the caller's own timeout that is reserved for the fallback."""


class ScoringError(EsTtcError):
    """A method failed, or returned invalid scores."""

    type = "ttc_scoring_exception"


def budget_ms(budget: float, timeout_ms: float | None, started: float) -> float:
    """Return a budget of time, in ms, limited so that the gateway can answer within the caller's own timeout.

    ``started`` is `time.perf_counter` when the request arrived.
    """
    if timeout_ms is None:
        return budget
    spent = (time.perf_counter() - started) * 1000
    return max(0.0, min(budget, timeout_ms - spent - _TIME_TO_ANSWER_MS))


async def attempt(
    work: Awaitable[T],
    *,
    what: str,
    method: str,
    budget_ms: float,
    not_caught: type[Exception] = InvalidRequest,
) -> T | EsTtcError:
    """Return the result of work (``what``, for messages) within a budget of time, or the reason of its failure.

    An InvalidRequest is raised: the engine's own ranking would not answer it. So is a ``not_caught`` exception.
    """
    try:
        async with asyncio.timeout(budget_ms / 1000):
            return await work
    except (InvalidRequest, not_caught):
        raise
    except TimeoutError:
        return DeadlineExceeded(f"{what} took longer than its budget of {budget_ms:.0f} ms")
    except EsTtcError as error:
        return error
    except Exception as error:  # noqa: BLE001 - after any failure the engine's own ranking is returned
        log.error(f"{what} failed", method=method, exc_info=error)
        return ScoringError(f"{what} failed: {type(error).__name__}: {error}")


def fell_back(metrics: Metrics, event: str, method: str, reason: EsTtcError) -> None:
    """Count and log a fallback."""
    metrics.fallbacks.labels(reason.type).inc()
    log.warning(event, method=method, reason=str(reason))
