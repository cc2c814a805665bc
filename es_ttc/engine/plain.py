"""One plain request to an engine whose product is not known yet."""

from typing import Any

import aiohttp
import orjson

from es_ttc.engine.addresses import NodePool, engine_addresses
from es_ttc.engine.aws import signer_of
from es_ttc.engine.exchange import Answer, Unreachable, answer_of, not_json, why_unconnected
from es_ttc.engine.http import TLS_ERRORS, open_session, request_timeout, service_headers
from es_ttc.settings import EngineSettings


async def engine_info(settings: EngineSettings) -> Any:
    """Return the engine's response to ``GET /``.

    Raises:
        ConfigurationError: The address is not a URL, or its certificates or credentials cannot be read.
        EngineError: The engine returned an error.
        EngineUnavailable: It cannot be reached.
    """
    nodes = NodePool(engine_addresses(settings))
    engine = "the engine at " + ",".join(address.url for address in nodes.addresses)
    headers = {"accept": "application/json", "accept-encoding": "identity", **service_headers(settings)}
    signer = signer_of(settings)
    seconds = settings.request_timeout
    timeout = request_timeout(settings)

    async def send() -> Answer:
        node = nodes.order()[0]
        url = node.target(b"/", b"")
        signed = {} if signer is None else await signer.headers("GET", url, None)
        try:
            async with session.get(url, headers=headers | signed, allow_redirects=False, timeout=timeout) as response:
                status, raw = response.status, await response.read()
        except TimeoutError as error:
            raise Unreachable(f"no answer within {seconds:g} seconds", may_repeat=False) from error
        except (aiohttp.ClientError, OSError) as error:
            nodes.failed(node)
            raise Unreachable(why_unconnected(error), may_repeat=not isinstance(error, TLS_ERRORS)) from error
        try:
            return Answer(status, orjson.loads(raw))
        except orjson.JSONDecodeError as error:
            if status < 300:
                raise not_json(engine, "GET", "/") from error
            return Answer(status, None)  # a proxy's page

    async with open_session(settings, connections=1) as session:
        answer = await answer_of(send, "GET", "/", engine=engine, nodes=len(nodes.addresses), seconds=seconds)
    return answer.body
