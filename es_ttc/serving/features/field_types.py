"""Types of the fields of a search's target, by the engine's `_field_caps` with the caller's credentials."""

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EngineError, MissingFeature
from es_ttc.serving.answer_forms import FIELD_CAPS
from es_ttc.serving.engine import EngineClient, NotForCaller
from es_ttc.serving.http.caller import Caller, CallerKeys

NUMERIC_TYPES = frozenset(
    {"byte", "double", "float", "half_float", "integer", "long", "scaled_float", "short", "unsigned_long"}
)
TEXT_TYPES = frozenset({"annotated_text", "match_only_text", "search_as_you_type", "semantic", "semantic_text", "text"})
"""Types of fields that the engines analyse."""
_MAX_REMEMBERED = 10_000
_SECONDS = 60.0
_UNMAPPED = "unmapped"
_FIX_METHOD = "search an index that has it, or take a model that was trained without it"


class FieldTypes:
    """Reads the types of fields; answers are remembered for a minute."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._keys = CallerKeys()
        self._known: ExpiringCache[bytes, None] = ExpiringCache(_MAX_REMEMBERED, _SECONDS)
        self._texts: ExpiringCache[bytes, frozenset[str] | str] = ExpiringCache(_MAX_REMEMBERED, _SECONDS)

    async def require(
        self,
        fields: Sequence[str],
        reads: str,
        caller: Caller,
        indices: Sequence[str] = (),
        *,
        fix: str = _FIX_METHOD,
    ) -> None:
        """Check that a target has numeric fields, which ``reads`` says in an error what reads, and ``fix`` what to do.

        A target that cannot be examined is taken to have them: the engine's own answer says what is wrong.
        """
        if not fields:
            return
        target = ",".join(indices) or caller.indices or "_all"
        key = self._keys.of(caller.headers, "\n".join([target, str(caller.params), *fields]).encode())
        if key in self._known:
            return
        try:
            answer = await self._engine.as_caller(caller).json(
                "GET",
                f"/{target}/_field_caps".encode(),
                caller.query_string(fields=",".join(fields)),
                failing=f"the fields of [{target}] could not be read",
                form=FIELD_CAPS,
            )
        except EngineError:
            return
        problem = _field_problem(answer["fields"], fields)
        if problem is not None and answer.get("indices"):
            raise MissingFeature(f"{reads} the numeric field [{problem[0]}], {problem[1]} in [{target}]: {fix}")
        self._known.put(key, None)

    async def analysed(self, fields: Collection[str], caller: Caller) -> frozenset[str]:
        """Return those fields that are analysed text in every index of a target that has them; at least one has.

        The indices of a point in time are not known: there it is every index that the caller sees.
        """
        names = sorted(name for name in fields if not set("*,").intersection(name))
        if not names:
            return frozenset()
        target = caller.indices or "_all"
        more = {} if caller.indices else {"expand_wildcards": "open,hidden"}
        key = self._keys.of(caller.headers, str([target, caller.params, names]).encode(errors="replace"))
        known = self._texts.get(key)
        fields_or_problem = await self._analysed(names, target, caller, more) if known is None else known.value
        if known is None:
            self._texts.put(key, fields_or_problem)
        if isinstance(fields_or_problem, str):
            raise NotForCaller(fields_or_problem)
        return fields_or_problem

    async def _analysed(
        self, names: Sequence[str], target: str, caller: Caller, more: Mapping[str, str]
    ) -> frozenset[str] | str:
        """Return the names of analysed fields, or why the caller may not know them."""
        failing = f"the types of the fields of [{target}] could not be read"
        query_string = caller.query_string(fields=",".join(names), **more)
        request = self._engine.as_caller(caller)
        try:
            answer = await request.json(
                "GET", f"/{target}/_field_caps".encode(), query_string, failing=failing, form=FIELD_CAPS
            )
        except NotForCaller as error:
            return str(error)
        if answer.get("failures"):
            raise EngineError(f"{failing}: an index did not answer")
        return frozenset(name for name in names if _is_analysed(answer["fields"].get(name, {})))


def _is_analysed(capabilities: Mapping[str, Any]) -> bool:
    """Return whether a field is analysed text wherever it was looked for, by its part of `_field_caps`."""
    return bool(capabilities) and capabilities.keys() <= TEXT_TYPES


def _field_problem(capabilities: Mapping[str, Any], fields: Sequence[str]) -> tuple[str, str] | None:
    """Return the first field that is not numeric, with what it is; None if all are."""
    for name in fields:
        types = {kind: found for kind, found in capabilities.get(name, {}).items() if kind != _UNMAPPED}
        if not types:
            return name, "and there is none that this caller may read"
        other = sorted(types.keys() - NUMERIC_TYPES)
        if other:
            return name, f"which is of type [{', '.join(other)}]"
        if not all(found.get("aggregatable", True) for found in types.values()):
            return name, "which has no doc values"
    return None


async def mapped_fields(engine: EngineClient, indices: Sequence[str], fields: Set[str]) -> set[str]:
    """Return those fields that at least one index has, by the engine's `_field_caps`."""
    caller = engine.caller
    query_string = caller.query_string(fields=",".join(sorted(fields)), include_unmapped="true")
    failing = f"the fields of [{', '.join(indices) or caller.indices}] could not be read"
    path = caller.path(indices, "_field_caps")
    answer = await engine.json("GET", path, query_string, failing=failing, form=FIELD_CAPS)
    by_field = answer["fields"]
    return {name for name in fields if _is_mapped(by_field.get(name, {}), indices)}


def _is_mapped(capabilities: Mapping[str, Any], indices: Sequence[str]) -> bool:
    """Return whether a field exists in at least one of some indices, or in any index if none are named."""
    if not capabilities.keys() - {_UNMAPPED}:
        return False
    without: Sequence[str] = capabilities.get(_UNMAPPED, {}).get("indices") or ()
    return not indices or not set(indices) <= set(without)
