"""The one weighted query (SIRA, equation 2): score(d) = BM25(q, d) + w BM25(expansion, d), in one search.

Both parts are BM25 of the same engine over the same fields, so ``w`` is a ratio without a unit: it has the same effect
on OpenSearch and on Elasticsearch, whose BM25 scores differ by the constant factor k1 + 1.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from es_ttc.index.mappings.queries import TIE_BREAKER
from es_ttc.index.mappings.spec import ENRICHMENT
from es_ttc.rescorers.base import Params
from es_ttc.rewriters.base import Expansion, Fields, Term

_FIELD = re.compile(r"[^\s^*]+(\^\d+(\.\d+)?)?")
DEFAULT_WEIGHT = 0.2
"""Of the expansion and of the enrichment: the greatest tried weight that does no harm on train queries, even with
a weak model's words (docs/results/sira.md)."""
NAMED = "ttc:"  # begins the names of es-ttc's clauses, before the term


class FieldParams(Params):
    """The searched fields, and the weights of the parts.

    Attributes:
        GRID: Values for `es-ttc tune`.
    """

    text_fields: tuple[str, ...] = Field(
        (),
        max_length=50,
        description="Text fields, optionally with boosts (`title^2`). Default: those that `es-ttc` has encoded.",
    )

    @field_validator("text_fields")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _FIELD.fullmatch(name):
                raise ValueError(f"{name!r} must be a field's name, with a boost where wanted, such as title^2")
        return names

    enrichment: float | None = Field(
        None,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Weight of a match in `ttc.enrichment`; 0 excludes the field. Default: 0.2 if an index has it.",
    )
    weight: float = Field(
        DEFAULT_WEIGHT,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Weight w of the expansion relative to the query; 0 is the query alone.",
    )


def weighted_query(
    text: str, fields: Fields, expansion: Expansion | None, params: FieldParams, *, named: bool
) -> dict[str, Any]:
    """Return the native query: the text's own part, and the expansion's if there is one."""
    searched = _weights(fields, params)
    if expansion is not None and expansion.own:
        own = _entries(expansion.own, fields, searched)
    else:
        own = _summed([_matching(text, fields.text), *_in_enrichment(text, searched)])
    terms = () if expansion is None or params.weight == 0 else expansion.terms
    if not terms:
        return own
    clauses = [_best(each, fields, searched, named=named) for each in _groups(terms)]
    return {"bool": {"should": [own, {"bool": {"should": clauses, "boost": params.weight}}]}}


class WeightedRewriter:
    """The base of rewriters whose parameters are :class:`FieldParams` and whose query is the weighted one."""

    def remembers(self, params: FieldParams) -> Mapping[str, Any]:
        """Return the parameters that the expansion depends on: of the weight, whether it is positive."""
        return {**params.model_dump(mode="json", exclude={"weight"}), "expands": params.weight > 0}

    def fields(self, params: FieldParams) -> Sequence[str]:
        """Return the text fields that the request names."""
        return params.text_fields

    def enrichment(self, params: FieldParams) -> bool | None:
        """Whether it gives the field of enrichment a weight of its own."""
        return None if params.enrichment is None else params.enrichment > 0

    def query(
        self, text: str, fields: Fields, expansion: Expansion | None, params: FieldParams, *, named: bool
    ) -> dict[str, Any]:
        """Return BM25(text) + w BM25(expansion)."""
        return weighted_query(text, fields, expansion, params, named=named)


def name_of(term: str) -> str:
    """Return the name of a term's clause."""
    return f"{NAMED}{term}"


def _weights(fields: Fields, params: FieldParams) -> float:
    """Return the weight of the field of enrichment."""
    if not fields.enrichment:
        return 0.0
    return DEFAULT_WEIGHT if params.enrichment is None else params.enrichment


def _groups(terms: Sequence[Term]) -> list[list[Term]]:
    """Return the terms with those of one group together, in order of their first term."""
    groups: dict[object, list[Term]] = {}
    for place, term in enumerate(terms):
        groups.setdefault(("alone", place) if term.group is None else term.group, []).append(term)
    return list(groups.values())


def _best(alternatives: Sequence[Term], fields: Fields, enrichment: float, *, named: bool) -> dict[str, Any]:
    """Return the clause of a group, which scores by its best term."""
    clauses = [_term(term, fields, enrichment, named=named) for term in alternatives]
    return clauses[0] if len(clauses) == 1 else {"dis_max": {"queries": clauses}}


def _entries(words: Sequence[Term], fields: Fields, enrichment: float) -> dict[str, Any]:
    """Return the clause of a text whose words have factors: as a `multi_match` of the text, but word by word."""
    by_field = []
    for given in fields.text:
        name, _, boost = given.partition("^")
        weight = float(boost or 1)
        by_field.append(_summed([_word(word, name, weight) for word in words]))
    best = by_field[0] if len(by_field) == 1 else {"dis_max": {"queries": by_field, "tie_breaker": TIE_BREAKER}}
    added = [_word(word, ENRICHMENT, enrichment) for word in words] if enrichment else []
    return _summed([best, *added])


def _word(word: Term, field: str, weight: float) -> dict[str, Any]:
    return {"match": {field: {"query": word.text, "boost": weight * word.weight * word.boosts.get(field, 1.0)}}}


def _term(term: Term, fields: Fields, enrichment: float, *, named: bool) -> dict[str, Any]:
    """Return the clause of one term: its adjacent words, in the best field and in the enrichment."""
    enrichment *= term.boosts.get(ENRICHMENT, 1.0)
    found = _summed(
        [
            _matching(term.text, _boosted(fields.text, term.boosts), phrase=True),
            *_in_enrichment(term.text, enrichment, phrase=True),
        ]
    )
    if term.weight == 1 and not named:
        return found
    extra: dict[str, Any] = {} if term.weight == 1 else {"boost": term.weight}
    return {"bool": {"should": [found], **extra, **({"_name": name_of(term.text)} if named else {})}}


def _boosted(fields: Sequence[str], boosts: Mapping[str, float]) -> Sequence[str]:
    """Return the fields with their boosts multiplied by the factors."""
    if not boosts:
        return fields
    parts = [(name, float(boost or 1)) for name, _, boost in (field.partition("^") for field in fields)]
    return [f"{name}^{boost * boosts.get(name, 1.0):.9g}" for name, boost in parts]


def _in_enrichment(text: str, weight: float, *, phrase: bool = False) -> list[dict[str, Any]]:
    if weight == 0:
        return []
    kind = "match_phrase" if phrase else "match"
    return [{kind: {ENRICHMENT: text if weight == 1 else {"query": text, "boost": weight}}}]


def _matching(text: str, fields: Sequence[str], *, phrase: bool = False) -> dict[str, Any]:
    """Return the query that ranks by BM25 over the text fields, by the best field mostly."""
    name, _, boost = fields[0].partition("^")
    if len(fields) == 1 and "*" not in name:
        query: dict[str, Any] = {"query": text, "boost": float(boost)} if boost else {"query": text}
        return {"match_phrase" if phrase else "match": {name: query}}
    kind: Mapping[str, Any] = {"type": "phrase"} if phrase else {}
    return {"multi_match": {"query": text, "fields": [*fields], "tie_breaker": TIE_BREAKER, **kind}}


def _summed(clauses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return clauses[0] if len(clauses) == 1 else {"bool": {"should": [*clauses]}}
