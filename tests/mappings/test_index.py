import math
from dataclasses import replace

import pytest

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.engine.protocol import Capabilities
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.mappings.fields import carried, stored_scales
from es_ttc.index.mappings.index import IndexOptions, index_body
from es_ttc.index.mappings.spec import ENRICHMENT_FIELDS, IndexSpec, SpanGrid, TokenStorage
from es_ttc.rescorers.base import Feature

SPEC = IndexSpec(EncoderIdentity("m", "r", 384, 256))
OPENSEARCH = Capabilities("opensearch", (3, 5, 0), True, "lucene", "apache-2.0", 16_000, 10**8, 1)
ELASTICSEARCH = Capabilities("elasticsearch", (9, 4, 3), True, "", "basic", 4096, 10**8, 1)


def test_the_vector_names_its_engine_and_algorithm() -> None:
    own = index_body(SPEC, OPENSEARCH)["mappings"]["properties"]["ttc"]["properties"]
    assert own["vector"]["method"] == {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
    faiss = index_body(SPEC, replace(OPENSEARCH, knn_engine="faiss"))["mappings"]["properties"]["ttc"]["properties"]
    assert faiss["vector"]["method"]["engine"] == "faiss"
    reference = index_body(SPEC, ELASTICSEARCH)["mappings"]["properties"]["ttc"]["properties"]
    assert reference["vector"]["index_options"] == {"type": "hnsw"}
    assert reference["vector"]["similarity"] == "cosine"


@pytest.mark.parametrize("capabilities", [OPENSEARCH, ELASTICSEARCH])
def test_spans_are_nested_vectors_of_the_same_kind(capabilities: Capabilities) -> None:
    assert "spans" not in index_body(SPEC, capabilities)["mappings"]["properties"]["ttc"]["properties"]
    spec = replace(SPEC, spans=(SpanGrid(10, 5),))
    own = index_body(spec, capabilities)["mappings"]["properties"]["ttc"]["properties"]
    assert own["spans"]["type"] == "nested"
    assert own["spans"]["properties"]["v"] == own["vector"]
    assert set(own["spans"]["properties"]) == {"v", "scale", "position", "field", "start", "end"}


@pytest.mark.parametrize("capabilities", [OPENSEARCH, ELASTICSEARCH])
def test_nested_token_vectors_stand_outside_source(capabilities: Capabilities) -> None:
    body = index_body(replace(SPEC, tokens="nested", spans=(SpanGrid(10, 5),)), capabilities)
    own = body["mappings"]["properties"]["ttc"]["properties"]
    assert own["tokens"] == {"type": "nested", "dynamic": "strict", "properties": {"v": own["vector"]}}
    assert body["mappings"]["_source"] == {"excludes": ["ttc"]}
    assert body["settings"]["index"]["max_inner_result_window"] == 10_000


def test_token_vectors_that_were_or_must_be_in_source() -> None:
    assert index_body(SPEC, OPENSEARCH)["mappings"]["_source"] == {"excludes": ["ttc"]}
    nested = replace(SPEC, tokens="nested", outside_source=False)
    for capabilities in (OPENSEARCH, ELASTICSEARCH):
        mappings = index_body(nested, capabilities)["mappings"]
        own = mappings["properties"]["ttc"]["properties"]
        assert own["tokens"] == {"type": "nested", "dynamic": "strict", "properties": {"v": own["vector"]}}
        outside = {f"ttc.{name}" for name in own} - {"ttc.tokens"}
        assert set(mappings["_source"]["excludes"]) == outside | set(ENRICHMENT_FIELDS)
    assert index_body(nested, ELASTICSEARCH)["settings"]["index"]["mapping"] == {"exclude_source_vectors": True}
    licensed = replace(ELASTICSEARCH, licence="enterprise")
    ranks = index_body(replace(SPEC, tokens="rank_vectors"), licensed)["mappings"]
    assert ranks["properties"]["ttc"]["properties"]["tokens"] == {"type": "rank_vectors", "dims": 384}
    assert "ttc.tokens" not in ranks["_source"]["excludes"]


@pytest.mark.parametrize(
    ("capabilities", "says"), [(OPENSEARCH, "Elasticsearch has from 9.0"), (ELASTICSEARCH, r"Enterprise.*\[basic\]")]
)
def test_rank_vectors_that_cannot_be_had_are_refused(capabilities: Capabilities, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        index_body(replace(SPEC, tokens="rank_vectors"), capabilities)


@pytest.mark.parametrize(("tokens", "stored"), [("nested", True), ("packed", False)])
def test_blobs_stand_in_doc_values_but_beside_nested_tokens(tokens: TokenStorage, stored: bool) -> None:
    own = index_body(replace(SPEC, tokens=tokens), OPENSEARCH)["mappings"]["properties"]["ttc"]["properties"]
    for name in ("norms", "offsets"):
        assert own[name] == {"type": "binary", "store": stored, "doc_values": not stored}
    assert own["pooled"] == {"type": "binary", "store": True, "doc_values": not stored}


def test_more_spans_than_a_document_may_have_are_refused() -> None:
    most = replace(SPEC, max_tokens=20_000, spans=(SpanGrid(10, 2),))
    index_body(most, OPENSEARCH)
    with pytest.raises(InvalidRequest, match="10,001 nested vectors"):
        index_body(replace(most, spans=(SpanGrid(10, 2), SpanGrid(30, 20_000))), OPENSEARCH)


def test_text_fields_nest_and_take_the_analyzer() -> None:
    spec = replace(SPEC, text_fields=("title", "body.text", "body.more"))
    properties = index_body(spec, OPENSEARCH, IndexOptions(analyzer="standard"))["mappings"]["properties"]
    text = {"type": "text", "analyzer": "standard"}
    assert properties["title"] == text
    assert properties["body"] == {"properties": {"text": text, "more": text}}


@pytest.mark.parametrize("fields", [(), ("",), ("a", "a"), ("a", "a.b"), ("a.b", "a"), ("_id",), ("ttc.x",), ("a..b",)])
def test_text_fields_that_cannot_be_mapped_are_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="text field"):
        index_body(replace(SPEC, text_fields=fields), OPENSEARCH)


def test_replicas_follow_the_nodes_unless_told() -> None:
    assert index_body(SPEC, OPENSEARCH)["settings"]["index"] == {"auto_expand_replicas": "0-1", "knn": True}
    told = index_body(SPEC, ELASTICSEARCH, IndexOptions(shards=3, replicas=2))["settings"]["index"]
    assert told == {"number_of_shards": 3, "number_of_replicas": 2, "mapping": {"exclude_source_vectors": False}}
    older = index_body(SPEC, replace(ELASTICSEARCH, version=(8, 19, 13)))["settings"]["index"]
    assert older == {"auto_expand_replicas": "0-1"}


def test_features_follow_the_spec() -> None:
    assert set(carried(SPEC)) == {Feature.POOLED, Feature.TOKENS, Feature.NORMS, Feature.OFFSETS}
    assert set(carried(replace(SPEC, scales=(1,)))) == {Feature.POOLED, Feature.TOKENS, Feature.OFFSETS}
    assert set(carried(replace(SPEC, tokens="none"))) == {Feature.POOLED}
    assert stored_scales(SPEC) == (3, 5, 7, 10, 15, 20, 30, math.inf)


def test_an_engine_that_cannot_hold_the_vectors_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="k-NN plugin"):
        index_body(SPEC, replace(OPENSEARCH, vectors=False))
    with pytest.raises(ConfigurationError, match=r"384 dimensions.*--dims"):
        index_body(SPEC, replace(OPENSEARCH, max_dims=128))
