"""Documents through the whole pipeline into real engines, with the real encoder."""

import asyncio
import json
import threading
import tracemalloc
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import cbor2
import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EncoderMismatch, EngineError, InvalidRequest
from es_ttc.index.ingest import DeadLetterList, Documents, IngestOptions, IngestResult, Inputs, encode_documents, ingest
from es_ttc.index.ingest.bulk import BatchLimits
from es_ttc.index.ingest.checkpoint import IngestCheckpoint, IngestRunKey
from es_ttc.index.mappings.calibration import calibrate
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import DOCUMENT, ENCODER, HASH, NORMS, OFFSETS, POOLED, STATE, TOKENS, VECTOR, IndexSpec
from es_ttc.vectors.packed import unpack_norms, unpack_offsets, unpack_tokens
from tests.conftest import PRODUCTS

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)
STRANGE: dict[str, dict[str, Any]] = {
    "plain": {"title": "Foxes", "text": "The quick brown fox jumps over the lazy dog.", "price": 3},
    "empty": {"title": "", "text": None, "price": 4},
    "bare": {},
    "thai": {"text": "ภาษาไทยไม่มีช่องว่างระหว่างคำ"},
    "arabic": {"title": "اللغة", "text": "العربية تكتب من اليمين إلى اليسار"},
    "emoji": {"text": "👩‍👩‍👧‍👦 family 🇹🇭 flag"},
    "control": {"text": "a\u0000b\u0007c\u001b[31m\u2028d"},
    "spaces": {"text": " \t\n "},
    "long": {"text": "word " * 100_000},
    "huge": {"text": "short", "payload": "x" * 2_000_000},
    "list": {"title": ["one", "two"], "nested": {"deep": [{"n": 1}, {"n": None}]}},
}
EMPTY_IDS = {"empty", "bare", "spaces"}


async def run(
    engine: Engine, index: str, encoder: Encoder, documents: Sequence[Mapping[str, Any]], **options: Any
) -> tuple[IngestResult, DeadLetterList]:
    letters = DeadLetterList()
    inputs = Inputs([Documents(documents)])
    outcome = await ingest(engine, index, inputs, encoder, dead_letters=letters, options=IngestOptions(**options))
    return outcome, letters


async def stored(url: str, index: str) -> dict[str, dict[str, Any]]:
    """Return every document's fields as bytes and texts, and its source, over CBOR."""
    body = {"size": 1000, "docvalue_fields": [HASH, ENCODER, STATE, DOCUMENT, POOLED, TOKENS, NORMS, OFFSETS]}
    headers = {"Accept": "application/cbor", "Accept-Encoding": "identity"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/{index}/_search", json=body, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.read()
        hits = cbor2.loads(await answer.read())["hits"]["hits"]
    return {
        hit["_id"]: {
            **{name: values[0] for name, values in hit.get("fields", {}).items()},
            "_source": hit.get("_source"),
        }
        for hit in hits
    }


@on_both
async def test_stored_features_equal_those_of_evaluation_in_memory(
    engine: Engine, engine_url: str, index: str, encoder: Encoder, spec: IndexSpec
) -> None:
    outcome, letters = await run(engine, index, encoder, [{"_id": name, **STRANGE[name]} for name in STRANGE])
    assert not letters.letters
    assert (outcome.read, outcome.written, outcome.empty) == (len(STRANGE), len(STRANGE), len(EMPTY_IDS))
    assert outcome.truncated == 1
    found = await stored(engine_url, index)
    assert set(found) == set(STRANGE)
    expected = encode_documents(list(STRANGE.values()), spec, encoder)
    for (name, document), features in zip(STRANGE.items(), expected, strict=True):
        fields = found[name]
        assert fields["_source"] == document
        assert (fields[HASH], fields[ENCODER]) == (features.hash, encoder.identity.key)
        assert fields[STATE] == ("empty" if name in EMPTY_IDS else "ready")
        if name in EMPTY_IDS:
            assert features.pooled is None
            assert not {TOKENS, NORMS, OFFSETS, POOLED} & set(fields)
            continue
        assert features.pooled is not None
        assert features.tokens is not None
        tokens = unpack_tokens(_bytes(fields[TOKENS]))
        assert tokens.scales is not None
        assert features.tokens.vectors.scales is not None
        np.testing.assert_array_equal(tokens.values, features.tokens.vectors.values)
        np.testing.assert_allclose(tokens.scales, features.tokens.vectors.scales, rtol=1e-6)
        norms = unpack_norms(_bytes(fields[NORMS]))
        assert list(norms.scales) == [3, float("inf")]
        np.testing.assert_allclose(norms.values, features.tokens.norms.values, rtol=1e-5)
        offsets, names = unpack_offsets(_bytes(fields[OFFSETS]))
        assert names == spec.text_fields
        np.testing.assert_array_equal(offsets, features.tokens.offsets)
        np.testing.assert_allclose(unpack_tokens(_bytes(fields[POOLED])).values[0], features.pooled, atol=1e-6)
    assert len(unpack_tokens(_bytes(found["long"][TOKENS]))) == spec.max_tokens


async def test_offsets_point_at_the_characters_of_their_field(
    engine: Engine, engine_url: str, index: str, encoder: Encoder
) -> None:
    document = {"_id": "1", "title": "Ein Fuchs", "text": "springt über 犬"}
    await run(engine, index, encoder, [document])
    offsets, names = unpack_offsets(_bytes((await stored(engine_url, index))["1"][OFFSETS]))
    words = [document[names[field]][start:end] for field, start, end in offsets if end > start]
    assert "".join(words) == "EinFuchsspringtüber犬"


@on_both
async def test_the_engine_finds_documents_by_their_vector_and_their_words(
    engine: Engine, index: str, encoder: Encoder
) -> None:
    texts = ["A fox is an animal.", "Bread is baked from flour.", "The train leaves at noon."]
    await run(engine, index, encoder, [{"_id": str(n), "text": text} for n, text in enumerate(texts)])
    vector = encoder.encode(["baking"], role="query", tokens=False).pooled[0].tolist()
    if (await engine.capabilities()).product == "opensearch":
        body: dict[str, Any] = {"query": {"knn": {VECTOR: {"vector": vector, "k": 3}}}}
    else:
        body = {"knn": {"field": VECTOR, "query_vector": vector, "k": 3, "num_candidates": 10}}
    hits = (await engine.search(index, body))["hits"]["hits"]
    assert hits[0]["_id"] == "1"
    cosine = float(np.dot(encoder.encode([texts[1]], tokens=False).pooled[0], vector))
    assert hits[0]["_score"] == pytest.approx((1 + cosine) / 2, abs=1e-4)
    assert "ttc" not in hits[0]["_source"]
    stemmed = await engine.search(index, {"query": {"match": {"text": "trains"}}})
    assert [hit["_id"] for hit in stemmed["hits"]["hits"]] == ["2"]


@on_both
async def test_rejected_documents_go_to_the_dead_letters_and_the_rest_goes_on(
    engine: Engine, index: str, encoder: Encoder
) -> None:
    documents: list[dict[str, Any]] = [
        {"_id": "1", "text": "one", "when": "2026-01-01"},
        {"_id": "2", "text": "two", "when": "not a date"},
        {"_id": "3", "text": "three", "ttc": {"hash": "forged"}},
        {"_id": "4", "text": "lone \ud800 surrogate"},
        {"_id": "5", "text": {"not": "text"}},
        {"_id": "", "text": "six"},
        {"_id": "7", "text": "seven"},
        {"_id": "8", "text": "eight", "deep": json.loads("[" * 900 + "]" * 900)},
    ]
    outcome, letters = await run(engine, index, encoder, documents)
    assert (outcome.written, outcome.rejected) == (2, 6)
    assert {hit["_id"] async for hit in engine.scan(index, {"match_all": {}}, source=False)} == {"1", "7"}
    by_number = {letter.number: letter for letter in letters.letters}
    assert set(by_number) == {2, 3, 4, 5, 6, 8}
    assert "when" in by_number[2].reason
    assert by_number[2].status == 400
    assert by_number[2].document == documents[1]
    assert "reserved" in by_number[3].reason
    assert "surrogate" in by_number[4].reason
    assert "more than 200 levels" in by_number[8].reason


@on_both
async def test_unchanged_documents_are_passed_over_and_changed_ones_are_not(
    engine: Engine, index: str, encoder: Encoder
) -> None:
    documents = [{"_id": str(n), "text": f"text {n}", "price": n} for n in range(5)]
    await run(engine, index, encoder, documents)
    documents[1]["price"] = 100
    documents[2]["text"] = "another text"
    await engine.request("POST", f"/{index}/_update/3", params={"refresh": "true"}, body={"doc": {"price": 99}})
    spec = (await Index.own(engine, index)).spec
    assert (await contents(engine, index, spec)).lacking == 1
    outcome, _ = await run(engine, index, encoder, documents)
    assert (outcome.skipped, outcome.written) == (2, 3)
    found = {hit["_id"]: hit["_source"] async for hit in engine.scan(index, {"match_all": {}}, source=True)}
    assert found == {each["_id"]: {"text": each["text"], "price": each["price"]} for each in documents}
    after = await contents(engine, index, spec)
    assert (after.documents, after.states, after.lacking, after.other_encoder) == (5, {"ready": 5}, 0, 0)


async def test_the_last_of_two_documents_with_one_id_stays(engine: Engine, index: str, encoder: Encoder) -> None:
    first, last = {"_id": "1", "text": "first"}, {"_id": "1", "text": "last"}
    for _ in range(2):  # the second time the index holds the last one, and the first one must not win
        outcome, _ = await run(engine, index, encoder, [first, {"_id": "2", "text": "other"}, last])
        found = {hit["_id"]: hit["_source"]["text"] async for hit in engine.scan(index, {"match_all": {}}, source=True)}
        assert found == {"1": "last", "2": "other"}
    assert (outcome.written, outcome.skipped, outcome.repeated) == (2, 1, 1)


async def test_documents_without_ids_are_not_doubled(engine: Engine, index: str, encoder: Encoder) -> None:
    documents = [{"text": f"text {n}"} for n in range(3)]
    await run(engine, index, encoder, documents)
    outcome, _ = await run(engine, index, encoder, documents)
    assert outcome.skipped == 3
    assert await engine.count(index) == 3


async def test_another_encoder_is_refused_before_anything_is_written(
    engine: Engine, index_name: str, encoder: Encoder, spec: IndexSpec
) -> None:
    other = replace(spec, encoder=replace(encoder.identity, revision="other"))
    await create_index(engine, index_name, other)
    with pytest.raises(EncoderMismatch, match="has changed since"):
        await run(engine, index_name, encoder, [{"_id": "1", "text": "one"}])
    await engine.refresh(index_name)
    assert await engine.count(index_name) == 0


async def test_an_index_of_someone_else_is_refused(engine: Engine, index_name: str, encoder: Encoder) -> None:
    await engine.create_index(index_name, {})
    with pytest.raises(InvalidRequest, match="es-ttc index create"):
        await run(engine, index_name, encoder, [{"_id": "1", "text": "one"}])


@on_both
async def test_an_index_that_is_deleted_under_way_is_noticed(engine: Engine, index: str, encoder: Encoder) -> None:
    async def delete() -> None:
        await engine.delete_index(index)

    loop = asyncio.get_running_loop()

    def documents() -> Iterator[dict[str, Any]]:
        yield {"_id": "1", "text": "one"}
        asyncio.run_coroutine_threadsafe(delete(), loop).result()
        yield {"_id": "2", "text": "two"}

    with pytest.raises(EngineError, match="deleted or replaced"):
        await ingest(engine, index, Inputs([Documents(documents())]), encoder, dead_letters=DeadLetterList())


async def test_ingest_cancelled_while_skipping_ends_its_threads(
    engine: Engine, index: str, encoder: Encoder, tmp_path: Path
) -> None:
    endless = 10**12
    loop, skipping, before = asyncio.get_running_loop(), asyncio.Event(), set(threading.enumerate())

    def documents() -> Iterator[dict[str, Any]]:
        for number in range(endless):
            if number == 1000:
                loop.call_soon_threadsafe(skipping.set)
            yield {"_id": "1", "text": "one"}

    checkpoint = IngestCheckpoint(tmp_path / "checkpoint", "run-1", IngestRunKey("x", "uuid", "m", None, ()), endless)
    inputs, letters = Inputs([Documents(documents())]), DeadLetterList()
    task = asyncio.create_task(ingest(engine, index, inputs, encoder, dead_letters=letters, checkpoint=checkpoint))
    await skipping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("ingest-"):
            thread.join(60)
            assert not thread.is_alive(), thread.name


async def test_a_calibrated_index_takes_further_documents(engine: Engine, index: str, encoder: Encoder) -> None:
    await run(engine, index, encoder, [{"_id": "1", "text": "one"}])
    await calibrate(engine, index, ["which one?", "what next?"], encoder)
    outcome, _ = await run(engine, index, encoder, [{"_id": "2", "text": "two"}])
    assert outcome.written == 1


@on_both
async def test_pooled_vectors_alone_and_float16_tokens(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder
) -> None:
    document = {"_id": "1", "text": "one"}
    await create_index(engine, f"{index_name}-a", IndexSpec(encoder.identity, tokens="none"))
    await run(engine, f"{index_name}-a", encoder, [document])
    assert set((await stored(engine_url, f"{index_name}-a"))["1"]) == {
        HASH,
        ENCODER,
        STATE,
        DOCUMENT,
        POOLED,
        "_source",
    }
    await create_index(engine, f"{index_name}-b", IndexSpec(encoder.identity, codec="float16", scales=(1,)))
    await run(engine, f"{index_name}-b", encoder, [document])
    fields = (await stored(engine_url, f"{index_name}-b"))["1"]
    assert NORMS not in fields
    assert unpack_tokens(_bytes(fields[TOKENS])).values.dtype == np.float16


async def test_an_alias_of_one_index_will_do(engine: Engine, index: str, encoder: Encoder) -> None:
    await engine.request("PUT", f"/{index}/_alias/{index}-alias")
    outcome, _ = await run(engine, f"{index}-alias", encoder, [{"_id": "1", "text": "one"}])
    assert outcome.written == 1
    assert await engine.count(index) == 1


async def test_memory_is_flat_whatever_the_size_of_the_input(engine: Engine, index: str, encoder: Encoder) -> None:
    """Documents of 96 MB, and without text, so that the encoder has little to do; what is under way fits in a third.

    Everything kept would be 288 MB: the document as read, its JSON, and its line of a bulk.
    """

    def documents() -> Iterator[dict[str, Any]]:
        for number in range(1500):
            yield {"_id": str(number), "payload": {"blob": f"{number:08d}" * 8000}}

    options = IngestOptions(batch=BatchLimits(bytes=2**20))
    letters = DeadLetterList()
    tracemalloc.start()
    try:
        outcome = await ingest(
            engine, index, Inputs([Documents(documents())]), encoder, dead_letters=letters, options=options
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (outcome.written, outcome.empty, outcome.rejected) == (1500, 1500, 0)
    assert peak < 128 * 2**20


def _bytes(value: object) -> bytes:
    assert isinstance(value, str), f"doc values are base64, got {type(value)}"
    return b64decode(value + "==")
