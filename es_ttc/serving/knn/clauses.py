"""kNN clauses in a search body that the gateway answers: parsing and replacing them.

The gateway answers a clause with ``query_text`` instead of a vector, and a clause with a ``ttc`` section. It may be
anywhere that an engine accepts one: Elasticsearch's top-level ``knn`` (an object or a list), a ``knn`` query anywhere
below ``query``, also inside ``bool``, ``nested`` or ``hybrid``, and a ``knn`` retriever below ``retriever``. In a
query, the syntax of either product is accepted; with a ``ttc`` section it may differ from the product's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.common.validation import shown, unknown_field
from es_ttc.engine.versions import Product
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.spec import HASH, ROOT, VECTOR
from es_ttc.serving.candidates.nearest import all_filters
from es_ttc.serving.http.limits import check_query
from es_ttc.serving.request.body import TEXT, FoundClause, Place, body_integer, body_number, put_at
from es_ttc.serving.request.section import KEY, Section, parse_section, require_clause
from es_ttc.vectors.tokens import Float32

_VECTOR_KEY: Mapping[Product, str] = {"elasticsearch": "query_vector", "opensearch": "vector"}
_INTEGERS, _NUMBERS = frozenset({"k", "num_candidates"}), frozenset({"boost", "similarity"})
_COMMON = ("query_text", "k", "filter", "boost", "_name", KEY)
_KNOWN: Mapping[Product, tuple[str, ...]] = {
    "elasticsearch": (*_COMMON, "field", "query_vector", "num_candidates", "similarity", "rescore_vector"),
    "opensearch": (*_COMMON, "vector", "method_parameters", "rescore"),
}
_OF_EACH_SEARCH: Mapping[Product, tuple[str, ...]] = {
    "elasticsearch": ("rescore_vector",),
    "opensearch": ("method_parameters", "rescore"),
}
_NATIVE: Mapping[Product, tuple[str, ...]] = {
    "elasticsearch": ("num_candidates", "similarity", "boost", "_name"),
    "opensearch": ("boost",),
}

GREATEST_SCORE = float(np.finfo(np.float32).max)
_ALTERNATIVES = frozenset({"should", "queries", "retrievers"})
"""Keys of the parts of compound queries and retrievers of which one is enough for a document to match."""


@dataclass(frozen=True, slots=True)
class KnnClause:
    """One kNN clause that the gateway answers."""

    place: Place
    hook: str
    syntax: Product
    field: str
    given: Mapping[str, Any]
    texts: tuple[str, ...]
    vector: Float32 | None
    section: Section | None

    def k(self, size: int) -> int:
        """Return the number of requested documents; default: the page's size, as in Elasticsearch."""
        return body_integer(self.given.get("k")) or max(1, size)

    @property
    def num_candidates(self) -> int | None:
        """The number of vectors that an approximate search considers on each shard; None for the engine's default."""
        return self.given.get("num_candidates")

    def is_optional(self, body: Mapping[str, Any]) -> bool:
        """Return whether its search finds documents without it too."""
        if self.hook == "top":
            return bool(body.get("query")) or (isinstance(body.get("knn"), list) and len(body["knn"]) > 1)
        return not _ALTERNATIVES.isdisjoint(self.place)

    @property
    def filters(self) -> list[Any]:
        """The caller's filter, as a list of queries."""
        value = self.given.get("filter")
        return value if isinstance(value, list) else [] if value is None else [value]

    def require_valid(self, max_k: int) -> None:
        """Raise an InvalidRequest for a wrong key of a clause that a method answers; the engine checks its own."""
        given = self.given
        where = "knn" if self.syntax == "elasticsearch" else f"knn.{self.field}"
        for key in given:
            if key not in _KNOWN[self.syntax]:
                raise unknown_field(key, _KNOWN[self.syntax], where)
        if self.field != VECTOR:
            raise InvalidRequest(
                f"[{where}] searches [{self.field}]: with [{KEY}] name [{VECTOR}], the method knows the others"
                if self.section is not None
                else f"[{where}] searches [{self.field}], and the index has its vectors in a side index: name "
                f"[{VECTOR}], or add [{KEY}] with a method that searches the others"
            )
        if self.section is not None:
            require_clause(self.section, "knn", lambda key: f"in [knn] use [{'k' if key == 'candidates' else 'boost'}]")
        _check_number(given, "k", where, least=1, most=max_k)
        _check_number(given, "num_candidates", where, least=1, most=10_000)
        _check_number(given, "boost", where, least=0, most=GREATEST_SCORE, whole=False)
        _check_number(given, "similarity", where, least=-1, most=1, whole=False)
        if given.get("num_candidates", max_k) < given.get("k", 0):
            raise InvalidRequest(f"[{where}.num_candidates] {given['num_candidates']} is less than [k] {given['k']}")
        value = given.get("filter", {})
        if not isinstance(value, dict | list):
            raise InvalidRequest(f"[{where}.filter] must be a query or a list of queries, got {shown(value)}")

    def of_each_search(self, product: Product) -> dict[str, Any]:
        """Return its keys that every kNN search gets too."""
        return {key: self.given[key] for key in _OF_EACH_SEARCH[product] if key in self.given}

    def native(self, vector: Float32, product: Product, size: int) -> dict[str, Any]:
        """Return the engine's own kNN query for a vector, without our section, which makes it the product's syntax."""
        if self.section is None:
            body = {key: value for key, value in self.given.items() if key != TEXT}
            product = self.syntax
        else:
            body = {key: self.given[key] for key in (*_NATIVE[product], *_OF_EACH_SEARCH[product]) if key in self.given}
            body["k"] = self.k(size)
            if self.filters:
                body["filter"] = all_filters(self.filters)
        body[_VECTOR_KEY[product]] = vector.tolist()
        return {"knn": {"field": self.field, **body} if product == "elasticsearch" else {self.field: body}}


def parse_clause(found: FoundClause, max_k: int) -> KnnClause:
    """Return a parsed kNN clause, or raise an InvalidRequest."""
    value = found.value
    is_flat = TEXT in value or KEY in value
    syntax: Product = "elasticsearch" if is_flat else "opensearch"
    [(field, given)] = [(value.get("field", VECTOR), value)] if is_flat else list(value.items())
    where = "knn" if is_flat else f"knn.{field}"
    section = parse_section(given[KEY]) if KEY in given else None
    texts, vector = _texts_or_vector(given, section, syntax, where)
    check_query(texts)
    if section is None and not str(field).startswith(f"{ROOT}."):
        raise InvalidRequest(
            f"[{where}.{TEXT}] is encoded for the vectors that es-ttc keeps, and [{field}] is none of them: search "
            f"[{VECTOR}], or give a vector of your own"
        )
    read = {key: _as_number(key, one) for key, one in given.items() if key != "field"}
    clause = KnnClause(found.place, found.hook, syntax, field, read, texts, vector, section)
    if section is not None:
        clause.require_valid(max_k)
    return clause


def put_in_place(body: Mapping[str, Any], queries: Sequence[tuple[KnnClause, dict[str, Any]]]) -> dict[str, Any]:
    """Return a copy of a body with native queries in place of clauses.

    A query that is not a ``knn`` object in Elasticsearch's syntax cannot replace a top-level clause: it becomes an
    alternative (``should``) of the body's query.
    """
    changed = dict(body)
    alternatives: list[dict[str, Any]] = []
    replaced: dict[int, dict[str, Any] | None] = {}
    for clause, query in queries:
        if clause.hook != "top":
            native = {"standard": {"query": query}} if clause.hook == "retriever" and "knn" not in query else query
            changed = put_at(changed, clause.place[:-1], native)
            continue
        position = int(clause.place[1]) if len(clause.place) > 1 else 0
        is_top_level_form = "field" in query.get("knn", {})
        replaced[position] = query["knn"] if is_top_level_form else None
        if not is_top_level_form:
            alternatives.append(query)
    if not replaced:
        return changed
    clauses = body["knn"] if isinstance(body["knn"], list) else [body["knn"]]
    left = [new for place, old in enumerate(clauses) if (new := replaced.get(place, old)) is not None]
    changed["knn"] = left if len(left) > 1 or isinstance(body["knn"], list) else left[0] if left else None
    if not left:
        del changed["knn"]
    if alternatives:
        own = [changed["query"]] if "query" in changed else []
        alone = not own and len(alternatives) == 1
        changed["query"] = alternatives[0] if alone else {"bool": {"should": [*own, *alternatives]}}
    return changed


def with_scores(
    documents: Sequence[tuple[str, str]],
    scores: Sequence[float],
    filters: Sequence[Any] = (),
    *,
    by_content: bool = False,
    name: str | None = None,
) -> dict[str, Any]:
    """Return the native query that matches some documents and gives each of them its score."""
    if not documents:
        return {"match_none": {}}
    by_index: dict[str, list[str]] = {}
    for index, identifier in documents:
        by_index.setdefault(index, []).append(identifier)
    matching = [_documents(index, identifiers, by_content) for index, identifiers in by_index.items()]
    functions = [
        {"filter": _documents(index, [identifier], by_content), "weight": score}
        for (index, identifier), score in zip(documents, scores, strict=True)
    ]
    query = matching[0] if len(matching) == 1 else {"bool": {"should": matching}}
    query = {"bool": {"filter": [query, *filters]}} if filters else query
    named = {} if name is None else {"_name": name}
    return {
        "function_score": {
            "query": query, "functions": functions, "score_mode": "first", "boost_mode": "replace", **named,
        }
    }  # fmt: skip


def _documents(index: str, identifiers: Sequence[str], by_content: bool) -> dict[str, Any]:
    """Return the query for some documents of one index; another searched index may have the same ids."""
    named = {"terms": {HASH: [*identifiers]}} if by_content else {"ids": {"values": [*identifiers]}}
    return {"bool": {"filter": [named, {"term": {"_index": index}}]}}


def _as_number(key: str, value: Any) -> Any:
    """Return the value of a key with a number as the engines read it; one that they do not read is not changed."""
    number = body_integer(value) if key in _INTEGERS else body_number(value) if key in _NUMBERS else None
    return value if number is None else number


def _texts_or_vector(
    given: Mapping[str, Any], section: Section | None, syntax: Product, where: str
) -> tuple[tuple[str, ...], Float32 | None]:
    """Return the clause's texts or its vector."""
    key = _VECTOR_KEY[syntax]
    texts: list[tuple[str, ...]] = []
    if TEXT in given:
        if not isinstance(given[TEXT], str) or (section is None and not given[TEXT].strip()):
            raise InvalidRequest(f"[{where}.{TEXT}] must be a text that is not empty, got {shown(given[TEXT])}")
        texts.append((given[TEXT],))
    if section is not None and section.query_text is not None:
        texts.append((section.query_text,))
    if section is not None and section.query_texts is not None:
        texts.append(section.query_texts)
    if len(texts) > 1:
        raise InvalidRequest(f"[{where}] gives the query's text twice, in [{TEXT}] and in [{KEY}]: keep one of them")
    for other in (key, "query_vector_builder"):
        if texts and other in given:
            raise InvalidRequest(f"[{where}] gives both [{TEXT}] and [{other}]: keep one of them")
    if texts:
        return tuple(text for text in texts[0] if text.strip()), None
    if key not in given:
        raise InvalidRequest(f"[{where}.{TEXT}] is missing: give the query's text, or its vector in [{key}]")
    return (), _unit(given[key], f"{where}.{key}")


def _unit(value: Any, where: str) -> Float32:
    numbers = isinstance(value, list) and all(
        isinstance(one, int | float) and body_number(one) is not None for one in value
    )
    if not numbers or not value:
        raise InvalidRequest(f"[{where}] must be a list of finite numbers, got {shown(value)}")
    vector = np.array(value, np.float64)
    maximum = float(np.abs(vector).max())
    if not maximum > 0:
        raise InvalidRequest(f"[{where}] has no direction: give a vector that is not all zeros")
    vector /= maximum  # so that the squares of the norm do not overflow
    unit: Float32 = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit


def _check_number(
    given: Mapping[str, Any], key: str, where: str, *, least: float, most: float, whole: bool = True
) -> None:
    if key not in given:
        return
    value = given[key]
    of_kind = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not of_kind or not least <= value <= most:
        kind = "an integer" if whole else "a number"
        raise InvalidRequest(f"[{where}.{key}] must be {kind} from {least:g} to {most:g}, got {shown(value)}")
