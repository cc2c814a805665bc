"""Rate limits that all workers share: requests per minute and requests in flight, counted in Redis by endpoint.

The time is that of Redis, because workers' clocks may differ. Without Redis each process uses the client's own limit:
an outage of Redis must not stop a job.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 1.0

_ENTER = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local in_flight, minute = KEYS[1], KEYS[2] .. math.floor(now / 60)
redis.call('ZREMRANGEBYSCORE', in_flight, '-inf', now)
if redis.call('ZCARD', in_flight) >= tonumber(ARGV[1]) then return 0 end
local rate = tonumber(ARGV[2])
if rate > 0 then
  if tonumber(redis.call('GET', minute) or '0') >= rate then return 0 end
  if redis.call('INCR', minute) == 1 then redis.call('EXPIRE', minute, 120) end
end
redis.call('ZADD', in_flight, now + tonumber(ARGV[3]), ARGV[4])
redis.call('EXPIRE', in_flight, 3600)
return 1
"""


class SharedRateLimits:
    """Delays requests to an endpoint until the limits allow them.

    Args:
        redis: An async client of Redis; None for no common limit.
        per_minute: Maximum number of requests per minute; 0 for no limit.
        seconds: Time after which an unfinished request (its worker died) is not counted any more.
    """

    def __init__(self, redis: Any, endpoint: str, *, concurrency: int, per_minute: int, seconds: float) -> None:
        self._redis = redis
        self._name = f"ttc:llm:{hashlib.sha256(endpoint.encode()).hexdigest()[:16]}"
        self._concurrency = concurrency
        self._per_minute = per_minute
        self._seconds = seconds

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Wait until one more request is allowed; it counts until the block ends."""
        token = secrets.token_hex(8)
        wait = _WAIT_SECONDS
        while not await self._enter(token):
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        try:
            yield
        finally:
            await self._leave(token)

    async def _enter(self, token: str) -> bool:
        if self._redis is None:
            return True
        keys = (f"{self._name}:in-flight", f"{self._name}:minute:")
        arguments = (self._concurrency, self._per_minute, self._seconds, token)
        try:
            return bool(await self._redis.eval(_ENTER, len(keys), *keys, *arguments))
        except (OSError, _redis_error()) as error:
            logger.warning("Redis does not answer, so its limits are not kept for now: %s", error)
            return True

    async def _leave(self, token: str) -> None:
        if self._redis is None:
            return
        try:
            await self._redis.zrem(f"{self._name}:in-flight", token)
        except (OSError, _redis_error()) as error:
            logger.debug("a question's end is not noted: %s", error)


def _redis_error() -> type[Exception]:
    from redis.exceptions import RedisError

    return RedisError
