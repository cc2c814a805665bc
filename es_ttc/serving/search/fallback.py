"""Budgets, and the one path from a failure of ours to the engine's own ranking."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from es_ttc.errors import DeadlineExceeded, EsTtcError, InvalidRequest
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import Metrics

T = TypeVar("T")

_TIME_TO_ANSWER_MS = 20.0
"""What is left of the caller's own timeout for answering with the engine's ranking."""


class ScoringError(EsTtcError):
    """A method broke its contract, or failed."""

    type = "ttc_scoring_exception"


def budget_ms(budget: float, timeout_ms: float | None, started: float) -> float:
    """Return a budget, cut so that there is time left to answer within the caller's own timeout.

    Args:
        budget: The budget that the request or the settings give, in ms.
        timeout_ms: The caller's own search timeout, or None.
        started: `time.perf_counter` when the request came in.
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
    """Return the result of work that may fail or be late, or the reason why there is none.

    Args:
        work: What is attempted.
        what: What it is called in messages: ``scoring``, ``retrieval``, ``rewriting``.
        method: The method's name, for the log.
        budget_ms: What it may take.
        not_caught: An exception that is no failure.

    Raises:
        InvalidRequest: The request cannot be meant as it stands; no ranking of the engine's answers it.
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
    except Exception as error:  # noqa: BLE001 - whatever fails of ours, the engine's own ranking is there to answer
        log.error(f"{what} failed", method=method, exc_info=error)
        return ScoringError(f"{what} failed: {type(error).__name__}: {error}")


def fell_back(metrics: Metrics, event: str, method: str, reason: EsTtcError) -> None:
    """Count and log that the engine's own ranking answers.

    Args:
        metrics: Where it is counted.
        event: What answers: ``first pass answered``, ``native kNN answered``, ``plain query answered``.
        method: The method's name.
        reason: Why.
    """
    metrics.fallbacks.labels(reason.type).inc()
    log.warning(event, method=method, reason=str(reason))
