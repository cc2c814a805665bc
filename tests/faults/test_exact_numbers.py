import asyncio
import json
import urllib.request
from decimal import Decimal
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.cli.app import run
from es_ttc.common import exact_numbers
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import fill_attached
from es_ttc.index.ingest.bulk import ActionLines, write
from es_ttc.index.ingest.rewrite import DocumentRewriter
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings

NUMBERS = {
    "long": "123456789012345678901234567890",
    "negative": "-98765432109876543210",
    "least": "-9223372036854775808",
    "kept": "1.25",
    "shortest": "0.30000000000000004",
}
AS_WRITTEN = {name: Decimal(number) for name, number in NUMBERS.items()}
DECIMALS = ("0.1234567890123456789", "1e400", "1e-400", "-98765432109876543210.5")


def line(**more: str) -> str:
    """One document as text: no decoder must come near it."""
    fields = [f'"{name}": {number}' for name, number in {**NUMBERS, **more}.items()]
    return '{"_id": "1", "title": "The cat", "text": "sleeps", "deep": [{' + ", ".join(fields) + "}]}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_url: str) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_TTC_ENGINE", engine_url)
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")
    return tmp_path


def stored(url: str, index: str, identifier: str = "1") -> dict[str, Decimal]:
    """Return the numbers of a document's `_source` as the engine keeps it: unfiltered, and read without doubles."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        whole = "?_source_exclude_vectors=false" if "X-Elastic-Product" in answer.headers else ""
    with urllib.request.urlopen(f"{url}/{index}/_doc/{identifier}{whole}", timeout=60) as answer:
        found = json.loads(answer.read(), parse_int=Decimal, parse_float=Decimal)
    numbers: dict[str, Decimal] = found["_source"]["deep"][0]
    return numbers


def make_index(url: str, name: str) -> None:
    """Make an index that takes any number: those below [deep] are kept and not indexed."""
    assert run(["index", "create", name]) == 0
    body = json.dumps({"properties": {"deep": {"type": "object", "enabled": False}}}).encode()
    request = urllib.request.Request(f"{url}/{name}/_mapping", body, {"content-type": "application/json"}, method="PUT")
    urllib.request.urlopen(request, timeout=60).close()


def test_whole_numbers_reach_the_engine_as_they_are_written(
    here: Path, engine_url: str, index_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "docs.jsonl").write_text(line())
    make_index(engine_url, index_name)
    assert run(["ingest", index_name, "docs.jsonl", "--json"]) == 0
    assert stored(engine_url, index_name) == AS_WRITTEN
    capsys.readouterr()
    assert run(["ingest", index_name, "docs.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 1
    greater = AS_WRITTEN["long"] + 1
    (here / "docs.jsonl").write_text(line(long=str(int(greater))))
    assert run(["ingest", index_name, "docs.jsonl", "--json"]) == 0
    assert stored(engine_url, index_name)["long"] == greater


def test_a_decimal_that_the_engine_would_change_is_refused(here: Path, engine_url: str, index_name: str) -> None:
    (here / "docs.jsonl").write_text("\n".join([line(), *(line(price=number) for number in DECIMALS)]))
    make_index(engine_url, index_name)
    assert run(["ingest", index_name, "docs.jsonl"]) == 1
    letters = (here / f"{index_name}.rejected.jsonl").read_text().splitlines()
    assert [json.loads(letter)["line"] for letter in letters] == [2, 3, 4, 5]
    for letter, number in zip(letters, DECIMALS, strict=True):
        refused = json.loads(letter, parse_int=Decimal, parse_float=Decimal)
        assert refused["reason"].startswith(f"field [deep.price] holds [{number}], which the engine would change")
        assert refused["document"]["deep"][0] == {**AS_WRITTEN, "price": Decimal(number)}


def test_a_long_number_is_an_id_as_it_is_written(here: Path, engine_url: str, index_name: str) -> None:
    (here / "docs.jsonl").write_text(line().replace('"_id": "1"', '"_id": 123456789012345678901234567890'))
    make_index(engine_url, index_name)
    assert run(["ingest", index_name, "docs.jsonl"]) == 0
    assert stored(engine_url, index_name, "123456789012345678901234567890") == AS_WRITTEN


def test_a_document_that_is_written_again_keeps_its_numbers(here: Path, engine_url: str, index_name: str) -> None:
    (here / "docs.jsonl").write_text(line())
    make_index(engine_url, index_name)
    assert run(["ingest", index_name, "docs.jsonl"]) == 0
    assert run(["index", "enrichment", index_name]) == 0
    assert asyncio.run(written_again(engine_url, index_name)) == 200
    assert stored(engine_url, index_name) == AS_WRITTEN


async def written_again(url: str, index: str) -> int:
    async with connected(EngineSettings(engine=url)) as engine:
        source = await Index.own(engine, index)
        concrete, spec = source.index, source.spec
        [whole] = await DocumentRewriter(engine, concrete, spec).read(["1"])
        [item] = await write(engine, concrete, [ActionLines("1", whole.lines({"enrichment": ["flood"]}))])
        return item.status


async def test_fill_leaves_a_document_alone_that_an_update_would_change(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder
) -> None:
    await create_index(engine, index_name, IndexSpec(encoder.identity, max_tokens=64))
    unindexed = {"properties": {"deep": {"type": "object", "enabled": False}}}
    await engine.request("PUT", f"/{index_name}/_mapping", body=unindexed)
    sent = [b'{"index": {"_id": "1"}}', line().replace('"_id": "1", ', "").encode()]
    assert (await engine.bulk(index_name, sent))[0].ok
    plain = {"title": "The dog", "text": "runs", "n": 1.5}
    await engine.request("PUT", f"/{index_name}/_doc/3", params={"refresh": "true"}, body=plain)
    [filled] = await fill_attached(engine, index_name, encoder)
    assert (filled.written, filled.failed) == (1, 1)
    assert filled.unmarked[0].startswith("document [1] holds [123456789012345678901234567890] in [deep.long]")
    assert stored(engine_url, index_name) == AS_WRITTEN


@given(
    st.one_of(
        st.integers().map(str),
        st.decimals(allow_nan=False, allow_infinity=False).map(str),
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
    )
)
def test_any_number_survives_decoding_and_encoding(text: str) -> None:
    for raw in (text, f"[{text}]"):
        encoded = orjson.dumps(exact_numbers.loads(raw), default=exact_numbers.default)
        assert Decimal(encoded.decode().strip("[]")) == Decimal(text)
