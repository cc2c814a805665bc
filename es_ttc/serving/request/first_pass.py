"""The searches of a request as they are sent to the engine, and further searches of the same target."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.errors import EngineError
from es_ttc.serving.engine import JSON, EngineClient, EngineRefusal, Refusal
from es_ttc.serving.http.caller import PRODUCT_HEADER, RawHeaders, asks_vendor_type
from es_ttc.serving.request.request import SearchItem, SearchRequest


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The engine's responses to the searches of a request, by position, each with its time in ms."""

    headers: RawHeaders
    responses: Mapping[int, tuple[dict[str, Any], float]]
    took: int = 0
    size: int = 0


async def first_pass(engine: EngineClient, request: SearchRequest) -> FirstPass:
    """Return the engine's responses to all searches that have no error, or raise an EngineRefusal."""
    if not request.is_multi:
        [item] = request.items
        response, answer = await engine.search_for(request.incoming, item.path, item.params, item.as_sent)
        return FirstPass(answer.headers, {0: (response, answer.ms)}, size=len(answer.body))
    positions: dict[bytes, list[int]] = {}
    for position, item in enumerate(request.items):
        if item.error is None:
            positions.setdefault(item.path, []).append(position)
    parts = [_part(engine, request, path, some) for path, some in positions.items()]
    product = [PRODUCT_HEADER] if asks_vendor_type(request.incoming.headers) else []
    first = FirstPass([(b"content-type", JSON), *product], {})
    for part in await asyncio.gather(*parts):
        responses = {**first.responses, **part.responses}
        first = FirstPass(part.headers, responses, max(first.took, part.took), first.size + part.size)
    return first


async def search_again(
    engine: EngineClient, request: SearchRequest, item: SearchItem, body: Mapping[str, Any]
) -> tuple[dict[str, Any], float]:
    """Return the engine's response to another body of a search, and its time in ms.

    Raises:
        Refusal: The engine refused it: an EngineRefusal, for a `_search`, which may be none of an engine.
        EngineError: The engine refused the whole `_msearch`.
    """
    if not request.is_multi:
        response, answer = await engine.search_for(request.incoming, item.path, item.params, body)
        return response, answer.ms
    try:
        searches = [(item.header, body)]
        [response], answer = await engine.msearch_for(request.incoming, item.path, request.params.engine, searches)
    except EngineRefusal as refusal:
        raise EngineError(f"a further search was refused: the engine answered {refusal.answer.status}") from refusal
    if "hits" not in response:
        raise Refusal(response.get("status"), response)
    return response, answer.ms


async def _part(engine: EngineClient, request: SearchRequest, path: bytes, positions: Sequence[int]) -> FirstPass:
    """Return the responses to the searches of an `_msearch` that have the same path."""
    items = [request.items[position] for position in positions]
    searches = [(item.header, item.as_sent) for item in items]
    responses, answer = await engine.msearch_for(request.incoming, path, request.params.engine, searches)
    timed = {position: (response, answer.ms) for position, response in zip(positions, responses, strict=True)}
    took = max((response.get("took", 0) for response in responses), default=0)
    return FirstPass(answer.headers, timed, took, len(answer.body))
