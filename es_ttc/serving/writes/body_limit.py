"""The longest body that the engine accepts: features must not make a request longer."""

import asyncio
import time

from es_ttc.errors import EngineError
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.http.upstream import Upstream

_PATH = b"/_nodes/http"
_FILTER = b"filter_path=nodes.*.http.max_content_length_in_bytes"
_DEFAULT_BYTES = 100 * 2**20
"""The default of both engines."""
_SHARE = 0.95
_SECONDS = 600.0
_TIMEOUT_SECONDS = 2.0


class BodyLimit:
    """Reads ``http.max_content_length`` of the engine's nodes, if the gateway's own account may."""

    def __init__(self, upstream: Upstream) -> None:
        self._requests = EngineRequests(upstream)
        self._bytes = _DEFAULT_BYTES
        self._next_read = 0.0

    async def bytes(self) -> int:
        """Return the number of bytes that a body may have, with some room."""
        if time.monotonic() >= self._next_read:
            self._next_read = time.monotonic() + _SECONDS
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    answer = await self._requests.as_gateway().json("GET", _PATH, _FILTER, failing="limits")
                self._bytes = min(node["http"]["max_content_length_in_bytes"] for node in answer["nodes"].values())
            except (EngineError, TimeoutError, ValueError, LookupError, TypeError):
                pass
        return int(self._bytes * _SHARE)
