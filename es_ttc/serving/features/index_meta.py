"""What es-ttc keeps in the mapping of an index beside its spec: read in the caller's name, else in the gateway's own.

A caller who may search an index need not have the right to see its mapping. What is read here tells nothing of any
document.
"""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, urlencode

from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.index.mappings.spec import ROOT
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream


async def meta_of(upstream: Upstream, index: str, key: str | None, caller: Caller) -> AsyncIterator[list[Any]]:
    """Yield the values of ``_meta.ttc.<key>``, as the caller may see them and then as the gateway may.

    Where no key is named, those of the whole ``_meta.ttc``.

    An empty list where there is none; nothing for whoever may not see the mapping.

    Raises:
        EngineUnavailable: The engine does not answer.
    """
    wanted = ROOT if key is None else f"{ROOT}.{key}"
    query_string = urlencode({"filter_path": f"*.mappings._meta.{wanted}"}).encode()
    path = f"/{quote(index, safe='')}/_mapping".encode()
    engine = EngineRequests(upstream)
    for asking in (engine.as_caller(caller), engine.as_gateway()):
        try:
            answer = await asking.json("GET", path, query_string, failing="the mapping could not be read")
        except EngineUnavailable:
            raise
        except EngineError:
            continue
        found = [mapping["mappings"]["_meta"][ROOT] for mapping in answer.values()]
        yield found if key is None else [meta[key] for meta in found]
