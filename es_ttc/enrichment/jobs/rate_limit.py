"""The rate of requests that all workers share, by the minutes of Redis's clock; its outage does not stop a job."""

import asyncio
import hashlib
import logging
from typing import Any

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 0.05
_MAX_WAIT_SECONDS = 1.0

_COUNT = """
local minute = KEYS[1] .. math.floor(tonumber(redis.call('TIME')[1]) / 60)
if tonumber(redis.call('GET', minute) or '0') >= tonumber(ARGV[1]) then return 0 end
if redis.call('INCR', minute) == 1 then redis.call('EXPIRE', minute, 120) end
return 1
"""


class SharedRateLimit:
    """Delays requests to an endpoint beyond a number per minute; 0 for no limit."""

    def __init__(self, redis: Any, endpoint: str, per_minute: int) -> None:
        self._redis = redis
        self._key = f"ttc:llm:{hashlib.sha256(endpoint.encode()).hexdigest()[:16]}:minute:"
        self._per_minute = per_minute

    async def wait(self) -> None:
        """Wait until one more request is allowed."""
        wait = _WAIT_SECONDS
        while self._per_minute and not await self._counted():
            await asyncio.sleep(wait)
            wait = min(2 * wait, _MAX_WAIT_SECONDS)

    async def _counted(self) -> bool:
        from redis.exceptions import RedisError

        try:
            return bool(await self._redis.eval(_COUNT, 1, self._key, self._per_minute))
        except (OSError, RedisError) as error:
            logger.warning("Redis does not answer, so its limits are not kept for now: %s", error)
            return True
