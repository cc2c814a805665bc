"""Which fields the searched indices have, by the engine's `_field_caps` in the caller's name."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream


async def mapped_fields(upstream: Upstream, caller: Caller, indices: Sequence[str], fields: Set[str]) -> set[str]:
    """Return the fields that at least one index has.

    Args:
        upstream: The engine.
        caller: In whose name it is asked.
        indices: Concrete indices; with none, those of the caller's own request.
        fields: What is looked for.

    Raises:
        EngineError: The engine did not answer.
    """
    query_string = caller.query_string(fields=",".join(sorted(fields)), include_unmapped="true")
    failing = f"the fields of [{', '.join(indices) or caller.indices}] could not be read"
    engine = EngineRequests(upstream, caller)
    answer = await engine.json("GET", caller.path(indices, "_field_caps"), query_string, failing=failing)
    found = answer["fields"]
    return {name for name in fields if is_mapped(found.get(name, {}), indices)}


def is_mapped(capabilities: Mapping[str, Any], indices: Sequence[str]) -> bool:
    """Whether a field exists in at least one of some indices, or in any at all where none are named."""
    if not capabilities.keys() - {"unmapped"}:
        return False
    without: Sequence[str] = capabilities.get("unmapped", {}).get("indices") or ()
    return not indices or not set(indices) <= set(without)
