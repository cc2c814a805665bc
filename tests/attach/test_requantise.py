"""Token vectors moved to a coarser codec: nothing is encoded, searches go on, and a run that was stopped resumes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach import requantise
from es_ttc.index.attach.feature_locations import feature_location
from es_ttc.index.attach.requantise import Requantised, requantise_documents, require_coarser
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, encode_documents, ingest
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.readers import reader_of
from es_ttc.index.mappings.spec import HASH, IndexSpec, SpanGrid
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.tokens import TokenVectors
from tests.attach.conftest import attach, corpus, update
from tests.attach.test_beside import ask, scores

ON_ONE_ENGINE = True


class Silent:
    """An encoder that encodes no document."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, texts: Sequence[str], **_: Any) -> Any:
        raise AssertionError(texts)


async def stored(engine: Engine, index: str) -> dict[str, tuple[TokenVectors, str]]:
    """Return by id the token vectors and the content hash of every document of an index."""
    reader = reader_of("doc_values")
    request = reader.request([Feature.TOKENS])
    body = {**request, "size": 100, "docvalue_fields": [*request["docvalue_fields"], HASH]}
    found = {}
    for hit in (await engine.search(index, body))["hits"]["hits"]:
        if (tokens := reader.read(hit, Feature.TOKENS)) is not None:
            found[hit["_id"]] = tokens.value, hit["fields"][HASH][0]
    return found


@pytest.mark.parametrize("codec", ["int4", "int2"])
async def test_attached_features_move_into_a_new_side_index(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder, codec: Any
) -> None:
    await attach(engine, shop, spec, encoder)
    before = scores(ask(gateway, shop))
    filled = await attach(engine, shop, replace(spec, codec=codec), Silent(encoder))
    assert (filled.carried, filled.written, filled.failed) == (20, 0, 0)
    reply = ask(gateway, shop)
    assert (reply.json()["ttc"]["scored"], reply.json()["ttc"].get("stale")) == (19, None)
    assert scores(reply) == pytest.approx(before, abs={"int4": 0.02, "int2": 0.08}[codec])
    held = await feature_location(engine, shop)
    [fresh] = encode_documents([corpus()["d2"]], held.spec, encoder)
    tokens, content = (await stored(engine, held.index))["d2"]
    assert (tokens.codec, content) == (codec, fresh.hash)
    assert fresh.tokens is not None
    assert np.mean(tokens.values == fresh.tokens.vectors.values) > 0.9  # but for float16 beside a border


@pytest.mark.parametrize("inside", [pytest.param(True, marks=pytest.mark.processors, id="inside"), False])
async def test_documents_with_features_of_their_own_are_written_again(
    engine: Engine,
    shop: str,
    gateway: str,
    spec: IndexSpec,
    encoder: Encoder,
    inside: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = shop
    if inside:
        await attach(engine, shop, spec, encoder, inside=True)
    else:
        name = f"{shop}-own"
        await create_index(engine, name, replace(spec, spans=(SpanGrid(3, 2),)))
        documents = [{"_id": identifier, **document} for identifier, document in corpus().items()]
        await ingest(engine, name, Inputs([Documents(documents)]), encoder, dead_letters=DeadLetterList())
    try:
        before = scores(ask(gateway, name))
        source = (await engine.search(name, {"query": {"ids": {"values": ["d2"]}}}))["hits"]["hits"][0]["_source"]
        monkeypatch.setattr(requantise, "_AT_ONCE", 5)

        def stop(counts: Requantised) -> None:
            if counts.written == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await requantise_documents(engine, await feature_location(engine, name), "int2", stop)
        await engine.refresh(name)
        assert {tokens.codec for tokens, _ in (await stored(engine, name)).values()} == {"float16", "int2"}
        assert ask(gateway, name).json()["ttc"]["scored"] == 19  # some of one codec, some of the other
        done = await requantise_documents(engine, await feature_location(engine, name), "int2")
        assert (done.written, done.unchanged, done.total) == (14, 5, 19)
        await engine.refresh(name)
        again = await requantise_documents(engine, await feature_location(engine, name), "int2")
        assert (again.written, again.unchanged) == (0, 19)

        held = await feature_location(engine, name)
        assert held.spec.codec == "int2"
        [fresh] = encode_documents([corpus()["d2"]], held.spec, encoder)
        tokens, content = (await stored(engine, name))["d2"]
        assert (tokens.codec, content) == ("int2", fresh.hash)
        assert fresh.tokens is not None
        assert np.mean(tokens.values == fresh.tokens.vectors.values) > 0.9
        reply = ask(gateway, name)
        assert (reply.json()["ttc"]["scored"], reply.json()["ttc"].get("stale")) == (19, None)
        assert scores(reply) == pytest.approx(before, abs=0.08)
        after = (await engine.search(name, {"query": {"ids": {"values": ["d2"]}}}))["hits"]["hits"][0]["_source"]
        assert {key: after[key] for key in corpus()["d2"]} == {key: source[key] for key in corpus()["d2"]}
        if inside:
            await update(engine, name, "d2", {"body": "Our cat sings."})
            assert ask(gateway, name).json()["ttc"]["scored"] == 18
    finally:
        if not inside:
            await engine.delete_index(name)


@pytest.mark.parametrize(
    ("change", "codec", "says"),
    [
        ({"codec": "int2"}, "int8", r"\[int2\], which is coarser than \[int8\]"),
        ({"tokens": "nested"}, "int2", r"keeps its tokens as \[nested\]"),
        ({"tokens": "none"}, "int2", r"keeps its tokens as \[none\]"),
    ],
)
def test_what_cannot_be_moved_is_refused(spec: IndexSpec, change: dict[str, Any], codec: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        require_coarser(replace(spec, **change), codec, "articles")
