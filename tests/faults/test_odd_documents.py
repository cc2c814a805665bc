"""Documents with features that are damaged, foreign or of an unknown kind: the others are scored without them."""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from es_ttc.encoders.base import Encoder
from es_ttc.serving.features.index_meta import most_frequent
from es_ttc.vectors.packed import pack_norms, pack_offsets, pack_tokens, unpack_tokens
from es_ttc.vectors.tokens import ScaleNorms, TokenVectors
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SIDECAR_TOKEN, SearchStack, make_index
from tests.serving.corpus import CATS
from tests.serving.test_sidecar import FIELDS, answer, ask, first_pass, frame_of, what_is_missing
from tests.support.gateway import gateway_to

OF_TOKENS = {"truncated", "too-long", "more-than-allowed", "earlier-layout"}
INDEX = "faults-odd-documents"
GOOD = tuple(f"d{number}" for number in range(60) if number != 7)
FOREIGN = "other-model@0123456789ab/384x256"
RNG = np.random.default_rng(5)


def b64(blob: bytes) -> str:
    return b64encode(blob).decode()


def padded(text: str) -> str:
    """Return base64 as engines accept it; OpenSearch returns doc values without padding."""
    return text + "=" * (-len(text) % 4)


def rows(number: int, dims: int, factor: float = 1.0) -> TokenVectors:
    matrix = RNG.standard_normal((number, dims)).astype(np.float32)
    return TokenVectors((factor * matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32))


def odd_documents(own: dict[str, str], encoder: str, good_hash: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """By id the reason that is told, and what stands below ``ttc``; the rest is as in a good document."""
    count = len(unpack_tokens(b64decode(own["tokens"])))
    norms = ScaleNorms((3.0,), np.ones((1, count + 3), np.float32))
    huge = TokenVectors(np.full((4, 384), 1e30, np.float32))
    return {
        "truncated": ("damaged", {"tokens": own["tokens"][:400]}),
        "no-blob": ("damaged", {"tokens": "VFRDAQECAwQ=", "pooled": "VFRDAQECAwQ="}),
        "other-dims": (
            "dimensions",
            {"tokens": b64(pack_tokens(rows(5, 100))), "pooled": b64(pack_tokens(rows(1, 100)))},
        ),
        "too-long": ("dimensions", {"tokens": b64(pack_tokens(TokenVectors(np.zeros((70_000, 1), np.float16))))}),
        "more-than-allowed": ("dimensions", {"tokens": b64(pack_tokens(rows(65, 384)))}),
        "huge": ("values", {"tokens": b64(pack_tokens(huge)), "pooled": b64(pack_tokens(rows(1, 384, 1e20)))}),
        "unknown-layout": ("layout", {"hash": "abc-a-layout-of-the-future"}),
        "foreign": ("encoder", {"encoder": FOREIGN}),
        "smaller": ("encoder", {"encoder": encoder.replace("/384x", "/383x")}),
        "earlier-layout": ("layout", {"tokens": b64(b"TTC\x01" + b64decode(padded(own["tokens"]))[4:])}),
        "two-hashes": ("marks", {"hash": ["zzz", good_hash]}),
        "two-encoders": ("marks", {"encoder": [encoder, FOREIGN]}),
        "control-characters": ("marks", {"hash": "a\0b-doc_values"}),
        "control-in-encoder": ("marks", {"encoder": f"{encoder}\n"}),
        "odd-norms": ("", {"norms": b64(pack_norms(norms.in_steps()))}),
        "odd-offsets": ("", {"offsets": b64(pack_offsets(np.zeros((count + 1, 3), np.int32), ["text"]))}),
        "broken-norms": ("", {"norms": "VFRDAQECAwQ="}),
    }


REASONS = {name: why for name, (why, _) in odd_documents({"tokens": b64(pack_tokens(rows(4, 384)))}, "", "").items()}
ODD = tuple(REASONS)
USELESS = {name for name, why in REASONS.items() if why}


@pytest.fixture(scope="module")
def odd(opensearch_url: str, encoder: Encoder) -> Iterator[SearchStack]:
    spec = make_index(opensearch_url, INDEX, encoder, codec="int8")
    body = {
        "query": {"ids": {"values": ["d1"]}},
        "docvalue_fields": [*FIELDS, "ttc.offsets", "ttc.hash", "ttc.encoder"],
    }
    [hit] = search(opensearch_url, INDEX, body).json()["hits"]["hits"]
    own = {name: padded(hit["fields"][f"ttc.{name}"][0]) for name in ("tokens", "norms", "pooled", "offsets")}
    identity = spec.encoder.key
    vector = unpack_tokens(b64decode(own["pooled"])).values[0].astype(float).tolist()
    for name, (_, changes) in odd_documents(own, identity, hit["fields"]["ttc.hash"][0]).items():
        marks = {"hash": f"hash_of_{name}".replace("-", "_") + "-doc_values", "encoder": identity, "vector": vector}
        document = {"title": name, "kind": "animal", "ttc": {**own, **marks, **changes}}
        reply = call(opensearch_url, "PUT", f"/{INDEX}/_doc/{name}?refresh=true", document)
        assert reply.status == 201, reply.body
    try:
        with gateway_to(opensearch_url, encoder, sidecar_token=SecretStr(SIDECAR_TOKEN)) as url:
            yield SearchStack(opensearch_url, url, INDEX, spec)
    finally:
        call(opensearch_url, "DELETE", f"/{INDEX}")


def rescored(stack: SearchStack, ids: list[str], method: str = "spectral", **section: Any) -> Reply:
    body = {"query": {"ids": {"values": ids}}, "size": 100}
    rescore = {"window_size": 100, "ttc": {"method": method, "query_text": CATS, **section}}
    return search(stack.gateway, stack.index, {**body, "rescore": rescore})


def scores_of(reply: Reply, names: set[str]) -> dict[str, float]:
    assert reply.status == 200, reply.body
    assert reply.json()["ttc"]["applied"] is True, reply.json()["ttc"]
    return {name: score for name, score in zip(reply.ids, reply.scores, strict=True) if name in names}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    good=st.sets(st.sampled_from(GOOD), min_size=2, max_size=12),
    bad=st.sets(st.sampled_from(ODD), min_size=1),
    method=st.sampled_from(["spectral", "dense", "maxsim", "mmr", "nnn"]),
    detail=st.booleans(),
)
def test_good_documents_are_scored_as_if_the_odd_ones_were_not_there(
    odd: SearchStack, good: set[str], bad: set[str], method: str, detail: bool
) -> None:
    if method in ("mmr", "nnn"):  # they judge documents together: only those that have no score change nothing
        bad &= USELESS - OF_TOKENS
    alone = rescored(odd, sorted(good), method, detail=detail)
    mixed = rescored(odd, sorted(good | bad), method, detail=detail)
    # Three units in the last place of float32: how many rows a product has decides its rounding.
    assert scores_of(mixed, good) == pytest.approx(scores_of(alone, good), abs=2e-7)
    told = mixed.json()["ttc"]
    without = told.get("skipped", {"count": 0})["count"]
    assert told["scored"] == len(good | bad) - without
    if method == "spectral":
        assert without == len(bad & USELESS)
    assert "skipped" not in alone.json()["ttc"]


def test_an_odd_document_that_is_read_by_itself_spoils_nothing_either(odd: SearchStack) -> None:
    """The rest is in memory."""
    good = [*GOOD[:10]]
    expected = scores_of(rescored(odd, good), set(good))
    for name in ODD:
        assert scores_of(rescored(odd, [*good, name]), set(good)) == pytest.approx(expected, abs=1e-7)


def test_skipped_documents_are_marked_and_counted(odd: SearchStack) -> None:
    ids = [*GOOD[:20], *ODD]
    reply = rescored(odd, ids, detail=True)
    expected: dict[str, int] = {}
    marks = {"dimensions": 3, "damaged": 2, "encoder": 2, "marks": 4, "layout": 2, "values": 1}
    assert reply.json()["ttc"]["skipped"] == {"count": 14, "reasons": dict(sorted(marks.items()))}
    for hit in reply.json()["hits"]["hits"]:
        if "skipped" in hit["_ttc"]:
            expected[hit["_ttc"]["skipped"]] = expected.get(hit["_ttc"]["skipped"], 0) + 1
    assert expected == marks
    metrics = call(odd.gateway, "GET", "/_ttc/metrics").body.decode()
    for reason in marks:
        assert f'es_ttc_skipped_documents_total{{reason="{reason}"}}' in metrics


def test_a_window_of_odd_documents_only_is_the_first_pass_marked_or_an_error(odd: SearchStack) -> None:
    for name in sorted(USELESS - {"unknown-layout"}):
        reply = rescored(odd, [name])
        assert reply.status == 200, (name, reply.body)
        assert reply.json()["ttc"]["applied"] is False
        assert "were skipped" in reply.json()["ttc"]["reason"]
        assert rescored(odd, [name], on_error="fail").status == 503
    reply = rescored(odd, ["earlier-layout"])
    assert "(layout 1): make the index, or what is attached to it, anew" in reply.json()["ttc"]["reason"]
    assert rescored(odd, ["unknown-layout"]).json()["ttc"]["applied"] is False
    assert rescored(odd, ["unknown-layout"], on_error="fail").status == 502


def test_a_retrieval_by_knn_passes_over_them(odd: SearchStack) -> None:
    for method in ("dense", "nnn", "rocchio"):
        query = {"knn": {"ttc.vector": {"query_text": CATS, "k": 80, "ttc": {"method": method}}}}
        reply = search(odd.gateway, odd.index, {"query": query, "size": 80})
        assert reply.status == 200, (method, reply.body)
        told = reply.json()["ttc"]
        assert told["applied"] is True, told
        assert told["skipped"]["reasons"]["encoder"] == 2
        assert not {"foreign", "smaller", "two-encoders"} & set(reply.ids)


def test_strategies_judge_by_the_indexs_encoder(odd: SearchStack) -> None:
    body = {"query": {"ids": {"values": ["foreign", "smaller", "truncated", *GOOD[:10]]}}, "size": 20}
    params = {"reranker": "maxsim", "budget": 13}
    section = {"method": "rr", "query_text": CATS, "params": params}
    reply = search(odd.gateway, odd.index, {**body, "rescore": {"window_size": 20, "ttc": section}})
    assert reply.status == 200, reply.body
    assert reply.json()["ttc"]["applied"] is True
    assert reply.json()["ttc"]["skipped"] == {"count": 3, "reasons": {"damaged": 1, "encoder": 2}}
    expected = scores_of(rescored(odd, list(GOOD[:10]), "maxsim"), set(GOOD[:10]))
    order = [name for name in reply.ids if name in expected]
    assert order == sorted(expected, key=lambda name: -expected[name])


def test_the_sidecar_passes_over_them(odd: SearchStack) -> None:
    documents, blobs = first_pass(odd)
    index = search(odd.engine, odd.index, {"query": {"match": {"kind": "animal"}}, "size": 100}).ids
    good = [place for place, name in enumerate(index) if name not in ODD]
    assert len(index) == len(documents) > len(good)

    def scored(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        found = answer(ask(odd.gateway, frame_of(chosen)))
        if "missing" in found:
            found = answer(ask(odd.gateway, frame_of(chosen) | {"features": what_is_missing(found, blobs)}))
        return found

    mixed, alone = scored(documents), scored([documents[place] for place in good])
    assert [mixed["scores"][place] for place in good] == pytest.approx(alone["scores"], abs=1e-7, nan_ok=True)
    assert mixed["skipped"]["reasons"]["encoder"] >= 2
    assert mixed["skipped"]["reasons"]["layout"] == 2
    assert "skipped" not in alone


def test_an_indexs_encoder_is_that_of_most_of_its_documents() -> None:
    assert most_frequent({"a": 3, "b": 2}, {"b": 5}, ["b"]) == "a"
    assert most_frequent({"a": 3, "b": 3}, {"a": 1, "b": 5}, ["a"]) == "b"
    assert most_frequent({}, {"a": 1, "b": 5}, ["a"]) == "b"
    assert most_frequent({}, {"b": 1, "a": 1, "c": 1}, ["c", "b"]) == "c"
    assert most_frequent({}, {"b": 1, "a": 1}, []) == "a"
