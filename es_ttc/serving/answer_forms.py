"""The form of the engine's answers: what the gateway reads of one has the types that engines give it.

An answer of another form comes from a damaged engine, or from a proxy: it is an error that names the place.
"""

from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Any

from es_ttc.common.validation import shown
from es_ttc.errors import EngineError
from es_ttc.index.mappings.attached import ID, ROUTING, SEQ_NO, SOURCE
from es_ttc.index.mappings.spec import ENCODER, HASH, STATE

Form = type | dict[str, Any] | list[Any]
"""A type of JSON; an object's required keys with their forms, ``*`` for all; or a list with that of its elements."""

FIELD_CAPS: Form = {"fields": {"*": {"*": dict}}}
TERMS: Form = {"buckets": [{"key": str, "doc_count": int}]}
"""The form of an aggregation `terms` of texts."""
_SEARCH: Form = {"_shards": {"failed": int, "total": int}, "hits": {"hits": list}}
_TOTAL: Form = {"value": int, "relation": str}
_OPTIONAL: Mapping[str, type] = {"aggregations": dict, "suggest": dict, "took": int}
_OF_A_HIT: Mapping[str, Set[type]] = {
    "_index": {str}, "_id": {str}, "_routing": {str}, "_score": {int, float, type(None)}, "_source": {dict},
    "fields": {dict}, "highlight": {dict}, "inner_hits": {dict}, "matched_queries": {dict, list},
    "sort": {list},
}  # fmt: skip
_VALUE: Set[type] = {str, int, float, bool}
_OF_A_FIELD: Mapping[str, Set[type]] = {"_seq_no": {int}} | dict.fromkeys(
    (ENCODER, HASH, ID, ROUTING, SEQ_NO, SOURCE, STATE), _VALUE
)
"""Types of the doc values that are read; an index of somebody else's may have numbers in fields of these names."""


def require_search_answer(answer: Any, failing: str) -> dict[str, Any]:
    """Return the answer to a search; an EngineError, which begins with ``failing``, if it has another form."""
    require_form(answer, _SEARCH, failing)
    total = answer["hits"].get("total")
    if total is not None and type(total) is not int:  # an integer with `rest_total_hits_as_int`
        require_form(total, _TOTAL, failing, "hits.total")
    require_form(answer, {key: form for key, form in _OPTIONAL.items() if key in answer}, failing)
    _require_hits(answer["hits"]["hits"], failing)
    found: dict[str, Any] = answer
    return found


def require_scores(hits: Sequence[Mapping[str, Any]], failing: str) -> None:
    """Raise an EngineError, which begins with ``failing``, if a hit of a search by score has none."""
    _require_types([hit.get("_score") for hit in hits], {int, float}, failing, "_score")


def require_form(value: Any, form: Form, failing: str, place: str = "") -> None:
    """Raise an EngineError, which begins with ``failing``, if a value of an answer has another form."""
    kind: type = type(value)
    if kind is not (form if isinstance(form, type) else type(form)):
        raise _malformed(failing, place, value)
    if isinstance(form, dict):
        for key, inner in form.items():
            for name in value if key == "*" else (key,):
                require_form(value.get(name), inner, failing, f"{place}.{name}".removeprefix("."))
    elif isinstance(form, list):
        for number, one in enumerate(value):
            require_form(one, form[0], failing, f"{place}[{number}]")


def _require_hits(hits: Sequence[Any], failing: str) -> None:
    """Check hits key by key: a call for each hit takes longer, and a window has up to 10,000."""
    if not {*map(type, hits)} <= {dict}:
        raise _malformed(failing, "hits.hits", hits)
    if not all("_index" in hit for hit in hits):
        raise _malformed(failing, "hits.hits._index", None)
    for name in frozenset(chain.from_iterable(hits)) & _OF_A_HIT.keys():
        _require_types([hit[name] for hit in hits if name in hit], _OF_A_HIT[name], failing, name)
    fields = [hit["fields"] for hit in hits if "fields" in hit]
    for name in frozenset(chain.from_iterable(fields)):
        values = [field[name] for field in fields if name in field]
        _require_types(values, {list}, failing, f"fields.{name}")
        if name in _OF_A_FIELD:
            _require_types([*chain.from_iterable(values)], _OF_A_FIELD[name], failing, f"fields.{name}")
            if not all(values):
                raise _malformed(failing, f"hits.hits.fields.{name}", [])


def _require_types(values: Sequence[Any], types: Set[type], failing: str, name: str) -> None:
    if not {*map(type, values)} <= types:
        wrong = next(value for value in values if type(value) not in types)
        raise _malformed(failing, f"hits.hits.{name}", wrong)


def _malformed(failing: str, place: str, value: Any) -> EngineError:
    problem = "is missing" if value is None else f"is {shown(value)}"
    return EngineError(f"{failing}: [{place or 'the answer'}] of the engine's answer {problem}, which it cannot be")
