"""Templates: the engine renders them, and the result is searched like any other body."""

import asyncio
from typing import Any

from es_ttc.errors import InvalidRequest
from es_ttc.serving.engine import EngineClient, json_of
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.limits import check_text, decoded_search
from es_ttc.serving.pool import Offload
from es_ttc.serving.request.body import boolean
from es_ttc.serving.request.request import SearchItem, SearchRequest
from es_ttc.serving.request.section import KEY

_AT_ONCE = 8  # templates of one `_msearch/template`


async def render_templates(request: SearchRequest, engine: EngineClient, offload: Offload) -> None:
    """Set the body of each search to its rendered template.

    A template that cannot be rendered or contains no section gets no body and is sent to the engine as received.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def rendered(item: SearchItem) -> None:
        async with room:
            item.body = await _rendered(request, item.line, engine, offload)

    await asyncio.gather(*map(rendered, request.items))


async def _rendered(
    request: SearchRequest, line: bytes, engine: EngineClient, offload: Offload
) -> dict[str, Any] | None:
    """Return the rendered search of a template, or None if it is sent to the engine as received.

    A stored template is always rendered, one in the request only if it contains the name of a section.
    """
    data = await offload.run(len(line), _decoded, line)
    if data is None or data.get("simulate") or ("id" not in data and KEY.encode() not in line):
        return None
    template: dict[str, Any] = {key: data[key] for key in ("id", "params", "source") if key in data}
    answer = await engine.send_for(request.incoming, b"/_render/template", (), json_of(template))
    try:
        output = jsonio.loads_unique(answer.body) if answer.status == 200 else None
    except ValueError:
        return None
    body = output.get("template_output") if isinstance(output, dict) else None
    if not isinstance(body, dict):
        return None
    return body | {key: True for key in ("explain", "profile") if boolean(data.get(key))}


def _decoded(line: bytes) -> dict[str, Any] | None:
    """Decode a template's request; None if it is no object or exceeds a limit."""
    try:
        check_text(line)
        data = decoded_search(line)
    except (InvalidRequest, ValueError):
        return None
    return data if isinstance(data, dict) else None
