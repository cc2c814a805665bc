"""Types of fields, and numeric fields of a window's documents.

The latter are doc values in the hits of a search with the caller's credentials. So an alias's filter and the caller's
rights hold for them: a field that the caller may not read is missing from the
hits. The fields of attached indices are those of the user's documents; a side index has none.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EngineError, InvalidRequest, MissingFeature
from es_ttc.rescorers.learned.fields import as_number
from es_ttc.serving.engine_requests import EngineRequests, NotForCaller
from es_ttc.serving.http.caller import Caller, CallerKeys
from es_ttc.serving.http.upstream import Upstream

NUMERIC_TYPES = frozenset(
    {"byte", "double", "float", "half_float", "integer", "long", "scaled_float", "short", "unsigned_long"}
)
TEXT_TYPES = frozenset({"annotated_text", "match_only_text", "search_as_you_type", "semantic", "semantic_text", "text"})
"""Types of fields that the engines analyse."""
_MOST_REMEMBERED = 10_000
_SECONDS = 60.0
_UNMAPPED = "unmapped"


@dataclass(frozen=True, slots=True)
class FieldsReader:
    """What reads numeric fields, in the words of an error."""

    reads: str
    fix: str

    @classmethod
    def of_method(cls, name: str) -> Self:
        """Return the words for a method of a search."""
        return cls(f"method [{name}] reads", "search an index that has it, or take a model that was trained without it")


def numbers_of(hits: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return numeric fields of hits, ``(n,)`` by name: NaN where a hit has none, the least of several values.

    Raises:
        InvalidRequest: A value is no number: the request asks for the field in another format.
    """
    return {name: np.array([_number_of(hit, name) for hit in hits], np.float64) for name in fields}


def _number_of(hit: Mapping[str, Any], name: str) -> float:
    values = (hit.get("fields") or {}).get(name)
    try:
        number = as_number(values)
    except ValueError:
        raise InvalidRequest(
            f"the method reads the numeric field [{name}], and the request asks for it in another form, {values}: "
            "leave out the [format] of the field, or read it from [_source]"
        ) from None
    return np.nan if number is None else number


class FieldTypes:
    """Types of the fields of a target, by the engine's `_field_caps` with the caller's credentials."""

    def __init__(self, upstream: Upstream) -> None:
        self._requests = EngineRequests(upstream)
        self._keys = CallerKeys()
        self._known: ExpiringCache[bytes, None] = ExpiringCache(_MOST_REMEMBERED, _SECONDS)
        self._texts: ExpiringCache[bytes, frozenset[str] | str] = ExpiringCache(_MOST_REMEMBERED, _SECONDS)

    async def require(
        self, fields: Sequence[str], reader: FieldsReader, caller: Caller, indices: Sequence[str] = ()
    ) -> None:
        """Check that a target has numeric fields; the answer is remembered for a minute.

        A target that cannot be examined is taken to have them: the engine's own answer says what is wrong.

        Raises:
            MissingFeature: It has no such field that the caller may read, or the field is not numeric.
        """
        if not fields:
            return
        target = ",".join(indices) or caller.indices or "_all"
        key = self._keys.of(caller.headers, "\n".join([target, str(caller.params), *fields]).encode())
        if key in self._known:
            return
        try:
            answer = await self._requests.as_caller(caller).json(
                "GET",
                f"/{target}/_field_caps".encode(),
                caller.query_string(fields=",".join(fields)),
                failing=f"the fields of [{target}] could not be read",
            )
        except EngineError:
            return
        problem = field_problem(answer["fields"], fields)
        if problem is not None and answer.get("indices"):
            raise MissingFeature(
                f"{reader.reads} the numeric field [{problem[0]}], {problem[1]} in [{target}]: {reader.fix}"
            )
        self._known.put(key, None)

    async def analysed(self, fields: Collection[str], caller: Caller) -> frozenset[str]:
        """Return those fields that are analysed text in every index of a target; remembered for a minute.

        The indices of a point in time are not known, so there a field must be text in every index that has it and that
        the caller sees.

        Raises:
            EngineError: The caller may not read the types of fields, or the engine failed.
        """
        names = sorted(name for name in fields if not set("*,").intersection(name))
        if not names:
            return frozenset()
        target = caller.indices or "_all"
        more = {"include_unmapped": "true"} if caller.indices else {"expand_wildcards": "open,hidden"}
        key = self._keys.of(caller.headers, str([target, caller.params, names]).encode(errors="replace"))
        known = self._texts.get(key)
        found = await self._analysed(names, target, caller, more) if known is None else known.value
        if known is None:
            self._texts.put(key, found)
        if isinstance(found, str):
            raise NotForCaller(found)
        return found

    async def _analysed(
        self, names: Sequence[str], target: str, caller: Caller, more: Mapping[str, str]
    ) -> frozenset[str] | str:
        """Return the names of analysed fields, or why the caller may not know them."""
        failing = f"the types of the fields of [{target}] could not be read"
        query_string = caller.query_string(fields=",".join(names), **more)
        request = self._requests.as_caller(caller)
        try:
            answer = await request.json("GET", f"/{target}/_field_caps".encode(), query_string, failing=failing)
        except NotForCaller as error:
            return str(error)
        if answer.get("failures"):
            raise EngineError(f"{failing}: an index did not answer")
        return frozenset(name for name in names if is_analysed(answer["fields"].get(name, {})))


def is_analysed(capabilities: Mapping[str, Any]) -> bool:
    """Return whether a field is analysed text wherever it was looked for, by its part of `_field_caps`."""
    return bool(capabilities) and capabilities.keys() <= TEXT_TYPES


def field_problem(capabilities: Mapping[str, Any], fields: Sequence[str]) -> tuple[str, str] | None:
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
