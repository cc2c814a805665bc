"""What the mappings of indices say: the values in ``_meta.ttc``, and which fields exist.

A caller who may search an index may lack the right to read its mapping. So ``_meta.ttc`` is read with the caller's
credentials and then with the gateway's own: it contains nothing from a document.
"""

from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import Any
from urllib.parse import quote, urlencode

from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.index.mappings.spec import ROOT
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream


async def meta_of(upstream: Upstream, index: str, key: str | None, caller: Caller) -> AsyncIterator[list[Any]]:
    """Yield the values of ``_meta.ttc.<key>``, read with the caller's credentials and then with the gateway's own.

    An empty list is yielded if there is no value, and nothing for credentials that may not read the mapping.

    Raises:
        EngineUnavailable: The engine does not answer.
    """
    path_in_meta = ROOT if key is None else f"{ROOT}.{key}"
    query_string = urlencode({"filter_path": f"*.mappings._meta.{path_in_meta}"}).encode()
    path = f"/{quote(index, safe='')}/_mapping".encode()
    requests = EngineRequests(upstream)
    for engine in (requests.as_caller(caller), requests.as_gateway()):
        try:
            answer = await engine.json("GET", path, query_string, failing="the mapping could not be read")
        except EngineUnavailable:
            raise
        except EngineError:
            continue
        found = [mapping["mappings"]["_meta"][ROOT] for mapping in answer.values()]
        yield found if key is None else [meta[key] for meta in found]


async def mapped_fields(upstream: Upstream, caller: Caller, indices: Sequence[str], fields: Set[str]) -> set[str]:
    """Return those fields that at least one index has, by the engine's `_field_caps`.

    Raises:
        EngineError: The engine returned an error.
    """
    query_string = caller.query_string(fields=",".join(sorted(fields)), include_unmapped="true")
    failing = f"the fields of [{', '.join(indices) or caller.indices}] could not be read"
    engine = EngineRequests(upstream, caller)
    answer = await engine.json("GET", caller.path(indices, "_field_caps"), query_string, failing=failing)
    found = answer["fields"]
    return {name for name in fields if is_mapped(found.get(name, {}), indices)}


def is_mapped(capabilities: Mapping[str, Any], indices: Sequence[str]) -> bool:
    """Return whether a field exists in at least one of some indices, or in any index if none are named."""
    if not capabilities.keys() - {"unmapped"}:
        return False
    without: Sequence[str] = capabilities.get("unmapped", {}).get("indices") or ()
    return not indices or not set(indices) <= set(without)
