"""The engine's protocol in a caller's name, over the gateway's own connections."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson

from es_ttc.engine.client import ClientEngine, Detected
from es_ttc.engine.exchange import Answer, Unreachable
from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.settings import GatewaySettings


class CallersEngine(ClientEngine):
    """What jobs ask of an engine; whatever goes on without the caller is refused.

    Args:
        requests: Sends requests in the caller's name.
        settings: The engine's addresses and timeout.
    """

    product = "opensearch"  # of no meaning: nothing here depends on it

    def __init__(self, requests: EngineRequests, settings: GatewaySettings) -> None:
        super().__init__(settings)
        self._requests = requests

    @property
    def name(self) -> str:
        """What messages call it: its address is not the caller's business."""
        return "the engine"

    async def close(self) -> None:
        """Nothing: the connections are the gateway's."""

    async def _exchange(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, content_type: str, seconds: float
    ) -> Answer:
        del seconds  # calls of the gateway's own have its timeout
        query_string = urlencode(params).encode()
        try:
            answer = await self._requests.send(
                method, path.encode(), query_string, body, content_type=content_type.encode()
            )
        except EngineUnavailable as error:
            raise Unreachable(str(error), may_repeat=False) from error
        try:
            return Answer(answer.status, orjson.loads(answer.raw) if answer.raw else None)
        except orjson.JSONDecodeError as error:
            raise self._not_json(method, path) from error

    async def _sorts_by_position(self) -> bool:
        return True

    async def _detect(self, nodes: Mapping[str, Any]) -> Detected:
        del nodes
        raise EngineError("what the engine can do is not asked in a caller's name")
