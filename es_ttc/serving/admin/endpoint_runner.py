"""Requests to the gateway's own endpoints: concurrency limit, errors in the engines' format, metrics, log."""

import time
from collections.abc import Coroutine
from typing import Any

from es_ttc.errors import EsTtcError, TooManyRequests
from es_ttc.serving.http.caller import ClientDisconnected
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import GONE, Metrics
from es_ttc.serving.pool import work_of


class EndpointRunner:
    """Runs the handlers of one kind of request."""

    def __init__(self, kind: str, metrics: Metrics, at_once: int) -> None:
        self._kind = kind
        self._metrics = metrics
        self._at_once = at_once
        self._in_flight = 0

    async def answered(self, work: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
        """Return status and body of a response: the handler's result, or its error in the engines' format."""
        started = time.perf_counter()
        self._in_flight += 1
        try:
            if self._in_flight > self._at_once:
                work.close()
                raise TooManyRequests(f"{self._at_once} {self._kind} requests are being answered: try again")
            with work_of(self._kind):
                status, body = 200, await work
        except ClientDisconnected:
            status, body = GONE, {}
        except EsTtcError as error:
            status, body = error.status, error.body()
        except Exception as error:  # noqa: BLE001 - any backend may fail in any way: a 500 in the engines' shape
            log.error(f"{self._kind} failed", exc_info=error)
            unexpected = EsTtcError(f"the {self._kind} request failed: {type(error).__name__}: {error}")
            status, body = unexpected.status, unexpected.body()
        finally:
            self._in_flight -= 1
        seconds = time.perf_counter() - started
        self._metrics.answered(self._kind, status, seconds)
        log.info("answered", kind=self._kind, status=status, ms=round(seconds * 1000, 2))
        return status, body
