"""The engine's protocol with a caller's credentials, over the gateway's connections."""

from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import orjson

from es_ttc.engine.client import ClientEngine, Detected
from es_ttc.engine.exchange import Answer, Unreachable
from es_ttc.errors import EngineError, EngineUnavailable, NotAllowed, NotSignedIn
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.settings import GatewaySettings

T = TypeVar("T")


class CallersEngine(ClientEngine):
    """The engine for records that callers read and write: jobs, judgements."""

    product = "opensearch"  # not used: no request for these records depends on the product

    def __init__(self, requests: EngineRequests, settings: GatewaySettings) -> None:
        super().__init__(settings)
        self._requests = requests

    @property
    def name(self) -> str:
        """The engine's name in messages, which do not contain its address."""
        return "the engine"

    async def close(self) -> None:
        """Do nothing: the connections are the gateway's."""

    async def _exchange(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, content_type: str, seconds: float
    ) -> Answer:
        del seconds  # the gateway's own timeout is used
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
        raise EngineError("the engine's capabilities are not read with a caller's credentials")


async def with_callers_errors(work: Coroutine[Any, Any, T]) -> T:
    """Return what work returns; the engine's refusal of the caller becomes an error of the same status.

    Raises:
        NotSignedIn: The engine does not know the caller.
        NotAllowed: It does not let the caller.
    """
    try:
        return await work
    except EngineError as error:
        if error.upstream_status == NotSignedIn.status:
            raise NotSignedIn(str(error)) from error
        if error.upstream_status == NotAllowed.status:
            raise NotAllowed(str(error)) from error
        raise
