"""kNN clauses of ours in a search body: where they stand, what they say, and the native queries put in their place.

A clause is ours when it has ``query_text`` in place of a vector, or a ``ttc`` section. It may stand wherever an engine
takes one: Elasticsearch's top-level ``knn`` (an object or a list), a ``knn`` query anywhere below ``query``, inside
``bool``, ``nested`` or ``hybrid`` too, and a ``knn`` retriever below ``retriever``. In a query either product's form is
understood; with a ``ttc`` section either form works on either product.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from es_ttc.common.validation import shown, unknown_field
from es_ttc.engine.versions import Product
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.spec import HASH, ROOT, VECTOR
from es_ttc.serving.http.limits import DEFAULT_LIMITS, RequestLimits
from es_ttc.serving.search.section import KEY, OF_RESCORE, Section, parse_section
from es_ttc.vectors.tokens import Float32

TEXT = "query_text"

Place = tuple[str | int, ...]
"""Keys and positions from the body to a ``knn`` object."""
Standing = Literal["top", "query", "retriever"]

_VECTOR_KEY: Mapping[Product, str] = {"elasticsearch": "query_vector", "opensearch": "vector"}
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


@dataclass(frozen=True, slots=True)
class KnnClause:
    """One kNN clause of ours.

    Attributes:
        place: Where it stands.
        standing: As what.
        form: The product whose form it has.
        field: The vector field.
        given: The caller's own keys and values, as they came.
        texts: The query's texts; none where it gives a vector.
        vector: ``(d,)`` the caller's own vector, of unit length; None where it gives texts.
        section: Its ``ttc`` section; None where only the text is to be encoded.
    """

    place: Place
    standing: Standing
    form: Product
    field: str
    given: Mapping[str, Any]
    texts: tuple[str, ...]
    vector: Float32 | None
    section: Section | None

    def k(self, size: int) -> int:
        """Return the documents wanted; where it does not say, the page's size, as Elasticsearch has it."""
        return int(self.given.get("k", max(1, size)))

    @property
    def boost(self) -> float:
        """What scores are multiplied by."""
        return float(self.given.get("boost", 1.0))

    @property
    def similarity(self) -> float | None:
        """The least cosine with the query that a document must have to be a match."""
        return self.given.get("similarity")

    @property
    def num_candidates(self) -> int | None:
        """Vectors that an approximate search considers on each shard, where it says so."""
        return self.given.get("num_candidates")

    @property
    def filters(self) -> list[Any]:
        """The caller's filter, as a list of queries."""
        told = self.given.get("filter")
        return told if isinstance(told, list) else [] if told is None else [told]

    def require_ours(self, most: int) -> None:
        """Check the keys of a clause that we answer; those of one that the engine answers are its own to check.

        Raises:
            InvalidRequest: One is unknown, or its value cannot be meant.
        """
        where = "knn" if self.form == "elasticsearch" else f"knn.{self.field}"
        _check_ours(self.given, self.section, self.form, self.field, where, most)

    def of_each_search(self, product: Product) -> dict[str, Any]:
        """Return what else of it every kNN search is told."""
        return {key: self.given[key] for key in _OF_EACH_SEARCH[product] if key in self.given}

    def native(self, vector: Float32, product: Product, size: int) -> dict[str, Any]:
        """Return the engine's own kNN query for a vector, without our section.

        Args:
            vector: ``(d,)``.
            product: Whose form it takes where there is a section; without one it keeps the caller's own.
            size: The page's size.
        """
        if self.section is None:
            body = {key: value for key, value in self.given.items() if key != TEXT}
            product = self.form
        else:
            body = {key: self.given[key] for key in (*_NATIVE[product], *_OF_EACH_SEARCH[product]) if key in self.given}
            body["k"] = self.k(size)
            if self.filters:
                body["filter"] = all_of(self.filters)
        body[_VECTOR_KEY[product]] = vector.tolist()
        return {"knn": {"field": self.field, **body} if product == "elasticsearch" else {self.field: body}}


def clauses_of(body: Mapping[str, Any], *, most: int, limits: RequestLimits = DEFAULT_LIMITS) -> list[KnnClause]:
    """Return the kNN clauses of ours in a search body.

    Args:
        body: The decoded body.
        most: Greatest ``k`` of a clause with a section.
        limits: How many there may be, and what each may hold.

    Raises:
        InvalidRequest: One cannot be meant as it stands.
    """
    try:
        found = list(_found(body))
    except RecursionError:
        raise InvalidRequest("[query] is nested too deeply") from None
    limits.check_clauses(len(found), "knn")
    return [_read(place, standing, value, most, limits) for place, standing, value in found]


def put_in_place(body: Mapping[str, Any], queries: Sequence[tuple[KnnClause, dict[str, Any]]]) -> dict[str, Any]:
    """Return a body with native clauses in the places of ours.

    Args:
        body: The caller's body; it is not changed.
        queries: For each clause the native query in its place.
    """
    changed = dict(body)
    beside: list[dict[str, Any]] = []
    natives: dict[int, dict[str, Any] | None] = {}
    for clause, query in queries:
        if clause.standing != "top":
            native = {"standard": {"query": query}} if clause.standing == "retriever" and "knn" not in query else query
            changed = put_at(changed, clause.place[:-1], native)
            continue
        position = int(clause.place[1]) if len(clause.place) > 1 else 0
        is_native = "field" in query.get("knn", {})  # Elasticsearch's form, which may stand there
        natives[position] = query["knn"] if is_native else None
        if not is_native:
            beside.append(query)
    if not natives:
        return changed
    kept = body["knn"] if isinstance(body["knn"], list) else [body["knn"]]
    left = [found for place, one in enumerate(kept) if (found := natives.get(place, one)) is not None]
    changed["knn"] = left if len(left) > 1 or isinstance(body["knn"], list) else left[0] if left else None
    if not left:
        del changed["knn"]
    if beside:
        own = [changed["query"]] if "query" in changed else []
        changed["query"] = beside[0] if not own and len(beside) == 1 else {"bool": {"should": [*own, *beside]}}
    return changed


def with_scores(
    documents: Sequence[tuple[str, str]],
    scores: Sequence[float],
    filters: Sequence[Any] = (),
    *,
    by_content: bool = False,
    name: str | None = None,
) -> dict[str, Any]:
    """Return the native query that matches some documents and gives each its score.

    Args:
        documents: Index and id of each document.
        scores: Their scores, not negative.
        by_content: Whether their contents' hashes stand in place of ids.
        filters: What a document must still match.
        name: The clause's ``_name``.
    """
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
    """Return what matches some documents of one index; another one that is searched may have the same ids."""
    named = {"terms": {HASH: [*identifiers]}} if by_content else {"ids": {"values": [*identifiers]}}
    return {"bool": {"filter": [named, {"term": {"_index": index}}]}}


def _found(body: Mapping[str, Any]) -> Iterator[tuple[Place, Standing, Mapping[str, Any]]]:
    """Yield every ``knn`` object of a body that is ours, with its place."""
    top = body.get("knn")
    if isinstance(top, dict) and _is_ours(top):
        yield ("knn",), "top", top
    for position, value in enumerate(top if isinstance(top, list) else ()):
        if _is_ours(value):
            yield ("knn", position), "top", value
    yield from _below(body.get("query"), ("query",), "query")
    yield from _below(body.get("retriever"), ("retriever",), "retriever")


def _below(value: Any, place: Place, standing: Standing) -> Iterator[tuple[Place, Standing, Mapping[str, Any]]]:
    if isinstance(value, list):
        for position, one in enumerate(value):
            yield from _below(one, (*place, position), standing)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key == "knn" and _is_ours(one):
                yield (*place, key), standing, one
            else:
                yield from _below(one, (*place, key), "query" if key == "query" else standing)


def _is_ours(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if TEXT in value or KEY in value:
        return True
    fields = list(value.values())
    return len(fields) == 1 and isinstance(fields[0], dict) and (TEXT in fields[0] or KEY in fields[0])


def _read(place: Place, standing: Standing, value: Mapping[str, Any], most: int, limits: RequestLimits) -> KnnClause:
    elasticsearchs = TEXT in value or KEY in value
    form: Product = "elasticsearch" if elasticsearchs else "opensearch"
    [(field, given)] = [(value.get("field", VECTOR), value)] if elasticsearchs else list(value.items())
    where = "knn" if elasticsearchs else f"knn.{field}"
    section = parse_section(given[KEY], limits) if KEY in given else None
    texts, vector = _question(given, section, form, where)
    limits.check_query(texts)
    if section is None and not str(field).startswith(f"{ROOT}."):
        raise InvalidRequest(
            f"[{where}.{TEXT}] is encoded for the vectors that es-ttc keeps, and [{field}] is none of them: search "
            f"[{VECTOR}], or give a vector of your own"
        )
    kept = {key: one for key, one in given.items() if key != "field"}
    clause = KnnClause(place, standing, form, field, kept, texts, vector, section)
    if section is not None:
        clause.require_ours(most)
    return clause


def _question(
    given: Mapping[str, Any], section: Section | None, form: Product, where: str
) -> tuple[tuple[str, ...], Float32 | None]:
    """Return the clause's texts or its vector: exactly one of both must be given, and once."""
    key = _VECTOR_KEY[form]
    texts: list[tuple[str, ...]] = []
    if TEXT in given:
        if not isinstance(given[TEXT], str) or not given[TEXT].strip():
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
        return texts[0], None
    if key not in given:
        raise InvalidRequest(f"[{where}.{TEXT}] is missing: give the query's text, or its vector in [{key}]")
    return (), _unit(given[key], f"{where}.{key}")


def _unit(value: Any, where: str) -> Float32:
    numbers = isinstance(value, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in value
    )
    if not numbers or not value:
        raise InvalidRequest(f"[{where}] must be a list of finite numbers, got {shown(value)}")
    vector = np.array(value, np.float64)
    greatest = float(np.abs(vector).max())
    if not greatest > 0:
        raise InvalidRequest(f"[{where}] has no direction: give a vector that is not all zeros")
    vector /= greatest
    unit: Float32 = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit


def _check_ours(
    given: Mapping[str, Any], section: Section | None, form: Product, field: str, where: str, most: int
) -> None:
    for key in given:
        if key not in _KNOWN[form]:
            raise unknown_field(key, _KNOWN[form], where)
    if field != VECTOR and section is not None:
        raise InvalidRequest(f"[{where}] searches [{field}]: with [{KEY}] name [{VECTOR}], the method knows the others")
    if field != VECTOR:
        raise InvalidRequest(
            f"[{where}] searches [{field}], and the index has its vectors in a side index: name [{VECTOR}], or add "
            f"[{KEY}] with a method that searches the others"
        )
    for key in OF_RESCORE if section is not None else ():
        if getattr(section, key) != Section.model_fields[key].default:
            instead = "k" if key == "candidates" else "boost"
            raise InvalidRequest(f"[{KEY}.{key}] belongs to [rescore]: in [knn] use [{instead}]")
    _check_number(given, "k", where, least=1, most=most)
    _check_number(given, "num_candidates", where, least=1, most=10_000)
    _check_number(given, "boost", where, least=0, whole=False)
    _check_number(given, "similarity", where, least=-1, most=1, whole=False)
    if given.get("num_candidates", most) < given.get("k", 0):
        raise InvalidRequest(f"[{where}.num_candidates] {given['num_candidates']} is less than [k] {given['k']}")
    told = given.get("filter", {})
    if not isinstance(told, dict | list):
        raise InvalidRequest(f"[{where}.filter] must be a query or a list of queries, got {shown(told)}")


def _check_number(
    given: Mapping[str, Any], key: str, where: str, *, least: float, most: float = math.inf, whole: bool = True
) -> None:
    if key not in given:
        return
    value = given[key]
    of_kind = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not of_kind or not least <= value <= most or not math.isfinite(value):
        kind = "an integer" if whole else "a number"
        limit = f"from {least:g} to {most:g}" if math.isfinite(most) else f"of {least:g} or more"
        raise InvalidRequest(f"[{where}.{key}] must be {kind} {limit}, got {shown(value)}")


def all_of(filters: Sequence[Any]) -> Any:
    """Return one query that matches what all of some filters match."""
    return filters[0] if len(filters) == 1 else {"bool": {"filter": [*filters]}}


def put_at(value: Any, place: Place, new: Any) -> Any:
    """Return a copy of nested JSON with another value in one place."""
    if not place:
        return new
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[place[0]] = put_at(value[place[0]], place[1:], new)
    return copy
