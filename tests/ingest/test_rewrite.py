"""A document written again with something added keeps everything that it had, whatever way it is stored."""

from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest, MissingFeature
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.ingest.bulk import ActionLines, RetryPolicy, write
from es_ttc.index.ingest.rewrite import DocumentRewriter, FullDocument
from es_ttc.index.mappings.enrichment import add_enrichment, enrichable
from es_ttc.index.mappings.fields import carried
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.readers import reader_of
from es_ttc.index.mappings.spec import (
    ENRICHED,
    ENRICHMENT,
    SPAN_VECTOR,
    SPANS,
    VECTOR,
    IndexSpec,
    SpanGrid,
    TokenStorage,
)
from es_ttc.rescorers.base import Feature

TEXTS = ["The fox sleeps in the sun. Bread is baked from flour.", "Trains leave at noon.", ""]
DOCUMENTS = [
    {"_id": f"d{n}", "title": "Tales", "text": text, "price": 1.5 + n, "tags": ["a", "b"], "deep": {"x": [1, None]}}
    for n, text in enumerate(TEXTS)
]
STORAGES: dict[str, dict[str, Any]] = {
    "packed": {"spans": (SpanGrid(3, 2),), "chunks": True},
    "float16": {"codec": "float16"},
    "nested": {"tokens": "nested", "spans": (SpanGrid(3, 2),)},
    "int2": {"codec": "int2", "spans": (SpanGrid(3, 2),)},
    "none": {"tokens": "none"},
}


async def filled(engine: Engine, name: str, encoder: Encoder, storage: str) -> IndexSpec:
    spec = IndexSpec(encoder.identity, scales=(1, 3), max_tokens=64, **STORAGES[storage])
    await create_index(engine, name, spec, IndexOptions(shards=2))
    letters = DeadLetterList()
    await ingest(engine, name, Inputs([Documents(DOCUMENTS)]), encoder, dead_letters=letters)
    assert not letters.letters
    return spec


async def features(engine: Engine, name: str, spec: IndexSpec) -> dict[tuple[str, Feature], str]:
    """All stored features as the gateway reads them."""
    reader = reader_of(spec.layout)
    wanted = list(carried(spec))
    query = reader.query({"match_all": {}}, wanted, (await engine.capabilities()).product)
    body = {"query": query, "size": 10, **reader.request(wanted)}
    hits = (await engine.search(name, body))["hits"]["hits"]
    found = {}
    for hit in hits:
        for feature in wanted:
            read = reader.read(hit, feature)
            value = read.value if read else None
            found[hit["_id"], feature] = repr(getattr(value, "values", value))
    return found


async def by_knn(engine: Engine, name: str, spec: IndexSpec, vector: list[float]) -> list[Any]:
    """What the engine's own kNN over vectors and spans answers."""
    paths = [VECTOR, *([SPAN_VECTOR] if spec.spans else [])]
    answers = []
    for path in paths:
        if (await engine.capabilities()).product == "opensearch":
            query: dict[str, Any] = {"knn": {path: {"vector": vector, "k": 3}}}
            query = {"nested": {"path": SPANS, "query": query, "score_mode": "max"}} if path == SPAN_VECTOR else query
            body: dict[str, Any] = {"query": query}
        else:
            body = {"knn": {"field": path, "query_vector": vector, "k": 3, "num_candidates": 50}}
        hits = (await engine.search(name, {**body, "_source": False}))["hits"]["hits"]
        answers.append([(hit["_id"], hit["_score"]) for hit in hits])
    return answers


async def rewrite(engine: Engine, name: str, documents: list[FullDocument], added: dict[str, Any]) -> list[int]:
    actions = [ActionLines(each.id, each.lines(added)) for each in documents]
    outcome = await write(engine, name, actions, RetryPolicy(attempts=1))
    await engine.refresh(name)
    return [item.status for item in outcome]


@pytest.mark.parametrize("storage", list(STORAGES))
async def test_rewrite_keeps_documents_and_features(
    engine: Engine, index_name: str, encoder: Encoder, storage: str
) -> None:
    spec = await filled(engine, index_name, encoder, storage)
    await add_enrichment(engine, index_name)
    vector = encoder.encode(["baking bread"], role="query", tokens=False).pooled[0].tolist()

    async def state() -> tuple[Any, ...]:
        query = {"multi_match": {"query": "fox bread", "fields": ["title", "text"]}}
        bm25 = (await engine.search(index_name, {"query": query}))["hits"]["hits"]
        marks = {
            "query": {"match_all": {}},
            "docvalue_fields": ["ttc.hash", "ttc.state", "ttc.encoder", "ttc.document"],
        }
        shown = (await engine.search(index_name, marks))["hits"]["hits"]
        return (
            [(hit["_id"], hit["_source"]) for hit in bm25],
            await features(engine, index_name, spec),
            await by_knn(engine, index_name, spec, vector),
            sorted(str((hit["_id"], hit["fields"])) for hit in shown),
        )

    before = await state()
    rewriter = DocumentRewriter(engine, index_name, spec)
    whole = await rewriter.read(["d0", "d1", "d2", "nowhere"])
    assert sorted(each.id for each in whole) == ["d0", "d1", "d2"]
    assert {each.id: each.source for each in whole} == {
        each["_id"]: {key: value for key, value in each.items() if key != "_id"} for each in DOCUMENTS
    }
    phrases = ["red animal", "loaf"]
    assert await rewrite(engine, index_name, whole, {"enrichment": phrases, "enriched": "k"}) == [200] * 3
    assert await state() == before
    # A second time: what was added is read like the rest.
    again = await rewriter.read(["d0"])
    assert again[0].ours["enrichment"] == phrases
    assert await rewrite(engine, index_name, again, {"enriched": "other"}) == [200]
    assert await state() == before
    for query, count in (
        ({"match_phrase": {ENRICHMENT: "red animals"}}, 3),
        ({"match_phrase": {ENRICHMENT: "animal loaf"}}, 0),  # not over the end of a phrase
        ({"term": {ENRICHED: "other"}}, 1),
    ):
        assert await engine.count(index_name, query) == count


async def test_a_write_of_what_has_changed_is_refused(engine: Engine, index_name: str, encoder: Encoder) -> None:
    spec = await filled(engine, index_name, encoder, "none")
    await add_enrichment(engine, index_name)
    [stale] = await DocumentRewriter(engine, index_name, spec).read(["d0"])
    await engine.request("PUT", f"/{index_name}/_doc/d0", body={"title": "New", "text": "new"})
    assert await rewrite(engine, index_name, [stale], {"enriched": "k"}) == [409]
    assert (await engine.request("GET", f"/{index_name}/_doc/d0"))["_source"] == {"title": "New", "text": "new"}
    # Someone else's write has dropped what is ours, so the document counts as not enriched.
    [plain] = await DocumentRewriter(engine, index_name, spec).read(["d0"])
    assert plain.ours == {}


async def test_routing_stays(engine: Engine, index_name: str, encoder: Encoder) -> None:
    spec = await filled(engine, index_name, encoder, "none")
    await add_enrichment(engine, index_name)
    await engine.request("PUT", f"/{index_name}/_doc/d0", params={"routing": "elsewhere"}, body={"title": "b"})
    await engine.refresh(index_name)
    count = await engine.count(index_name)
    whole = [each for each in await DocumentRewriter(engine, index_name, spec).read(["d0"]) if each.routing]
    assert [each.source for each in whole] == [{"title": "b"}]
    assert await rewrite(engine, index_name, whole, {"enriched": "k"}) == [200]
    assert await engine.count(index_name) == count
    found = await engine.request("GET", f"/{index_name}/_doc/d0", params={"routing": "elsewhere"})
    assert found["_source"] == {"title": "b"}


async def test_an_index_without_the_field_is_told_the_command(
    engine: Engine, index_name: str, encoder: Encoder
) -> None:
    await create_index(engine, index_name, IndexSpec(encoder.identity, tokens="none"))
    with pytest.raises(MissingFeature, match=f"es-ttc index enrichment {index_name}"):
        await enrichable(engine, index_name)
    made = await add_enrichment(engine, index_name)
    assert made.analyzer == "english"
    assert await enrichable(engine, index_name) == made == await add_enrichment(engine, index_name)
    with pytest.raises(InvalidRequest, match="cannot be changed to"):
        await add_enrichment(engine, index_name, "standard")
    # The field is no part of the spec: features of documents that were there before stay valid.
    mapping = (await engine.mapping(index_name))[index_name]
    assert IndexSpec.from_mapping(index_name, mapping) == made.spec


@pytest.mark.parametrize(("tokens", "outside"), [("none", True), ("nested", False), ("rank_vectors", True)])
def test_spans_that_cannot_be_made_again_are_refused(encoder: Encoder, tokens: TokenStorage, outside: bool) -> None:
    spec = IndexSpec(encoder.identity, tokens=tokens, spans=(SpanGrid(3, 2),), outside_source=outside)
    with pytest.raises(InvalidRequest, match="packed tokens"):
        DocumentRewriter(None, "i", spec)  # type: ignore[arg-type]
