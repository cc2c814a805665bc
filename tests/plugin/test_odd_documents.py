"""Documents with odd features in windows of an engine with our plugin: the others are scored without them."""

from base64 import b64decode
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.vectors.packed import unpack_tokens
from tests.faults.test_odd_documents import GOOD, ODD, odd_documents, padded
from tests.plugin.conftest import Plugged
from tests.serving.client import Reply, call, search
from tests.serving.conftest import make_index
from tests.serving.corpus import CATS
from tests.serving.test_sidecar import FIELDS

INDEX = "faults-odd-documents-plugin"
LONG = {
    "long-hash": {"hash": "h" * 300},
    "long-encoder": {"encoder": "e" * 2000},
    "no-hash": {"hash": ""},
    "no-encoder": {"encoder": ""},
}
"""Names that no frame of the sidecar protocol may say."""


@pytest.fixture(scope="module")
def odd(plugged: Plugged, encoder: Encoder) -> Plugged:
    url = plugged.url
    spec = make_index(url, INDEX, encoder, codec="int8")
    body = {"query": {"ids": {"values": ["d1"]}}, "docvalue_fields": [*FIELDS, "ttc.offsets", "ttc.hash"]}
    [hit] = search(url, INDEX, body).json()["hits"]["hits"]
    own = {name: padded(hit["fields"][f"ttc.{name}"][0]) for name in ("tokens", "norms", "pooled", "offsets")}
    vector = unpack_tokens(b64decode(own["pooled"])).values[0].astype(float).tolist()
    identity = spec.encoder.key
    odd_ones = {
        name: changes for name, (_, changes) in odd_documents(own, identity, hit["fields"]["ttc.hash"][0]).items()
    }
    for name, changes in (odd_ones | LONG).items():
        marks = {"hash": f"hash_of_{name}".replace("-", "_") + "-doc_values", "encoder": identity, "vector": vector}
        document = {"title": name, "kind": "animal", "ttc": {**own, **marks, **changes}}
        reply = call(url, "PUT", f"/{INDEX}/_doc/{name}?refresh=true", document)
        assert reply.status == 201, reply.body
    if plugged.product == "opensearch":
        rescore = [{"ttc_rescore": {"method": "spectral"}}]
        pipeline = {"response_processors": rescore, "request_processors": [{"ttc_window": {"window_size": 100}}]}
        assert call(url, "PUT", "/_search/pipeline/faults", pipeline).status == 200
    return plugged


def on_the_coordinator(odd: Plugged, ids: list[str]) -> tuple[Reply, bool]:
    ttc: dict[str, Any] = {"query_text": CATS}
    target = "?search_pipeline=faults"
    if odd.product == "elasticsearch":  # its filter is told by the request what a pipeline says on OpenSearch
        ttc, target = {**ttc, "method": "spectral", "window_size": 100}, ""
    body = {"query": {"ids": {"values": ids}}, "size": 100, "ext": {"ttc": ttc}}
    reply = search(odd.url, INDEX, body, target)
    assert reply.status == 200, reply.body
    return reply, reply.json()["ext"]["ttc"]["applied"]


def through_rescorer(odd: Plugged, ids: list[str]) -> tuple[Reply, bool]:
    before = odd.stats()["first_pass"]
    rescore = {"window_size": 100, "ttc": {"method": "spectral", "query_text": CATS}}
    reply = search(odd.url, INDEX, {"query": {"ids": {"values": ids}}, "size": 100, "rescore": rescore})
    assert reply.status == 200, reply.body
    return reply, odd.stats()["first_pass"] == before


@pytest.mark.parametrize("ask", [on_the_coordinator, through_rescorer])
def test_good_documents_are_scored_as_if_the_odd_ones_were_not_there(odd: Plugged, ask: Any) -> None:
    good = list(GOOD[:20])
    alone, applied = ask(odd, good)
    assert applied
    expected = dict(zip(alone.ids, alone.scores, strict=True))
    for bad in ([one] for one in (*ODD, *LONG)):
        mixed, applied = ask(odd, good + bad)
        assert applied, bad
        got = {name: score for name, score in zip(mixed.ids, mixed.scores, strict=True) if name in expected}
        assert got == pytest.approx(expected, abs=1e-6), bad
    mixed, applied = ask(odd, [*good, *ODD, *LONG])
    assert applied
    got = {name: score for name, score in zip(mixed.ids, mixed.scores, strict=True) if name in expected}
    assert got == pytest.approx(expected, abs=1e-6)
