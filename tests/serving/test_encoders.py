"""What serves an index: the configured encoder, one cut to its dimensions or length, or none; and its own features."""

import asyncio
import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.encoders import EncoderIdentity, load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.packages import minilm, minilm_for_torch
from es_ttc.errors import EncoderMismatch
from es_ttc.index.mappings.spec import ROOT
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.encoding import Encoders
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.pool import BoundedPool
from es_ttc.serving.warm_up import WarmUp
from es_ttc.settings import GatewaySettings
from tests.serving.client import call, search
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import CATS, EVERYTHING, WITHOUT_TEXT, in_memory, ttc_rescore
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

IDENTITY = EncoderIdentity("a-model", "0123456789ab", 384, 256, prompts="abcd", adapter="law@0123456789ab")


@pytest.fixture(scope="module")
def class_token(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """MiniLM with the class token's vector as its pooled one."""
    hashes = FileHashes(tmp_path_factory.mktemp("hashes"))
    onnx = minilm(hashes).onnx
    assert onnx is not None
    folder = tmp_path_factory.mktemp("models") / "class-token"
    shutil.copytree(minilm_for_torch(hashes).folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.onnx").symlink_to(onnx)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    return load_encoder(f"{folder}@onnx")


@pytest.mark.parametrize(("dims", "max_length"), [(128, None), (None, 16)])
def test_an_index_with_fewer_dimensions_or_a_shorter_length_is_served(
    stack: SearchStack, index_name: str, encoder: Encoder, dims: int | None, max_length: int | None
) -> None:
    cut = load_encoder("minilm@onnx", dims=dims, max_length=max_length)
    spec = make_index(stack.engine, index_name, cut)
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}
    with gateway_to(stack.engine, encoder, encoder="minilm@onnx", max_window=300) as gateway:
        reply = search(gateway, index_name, body)
        whole = search(gateway, stack.index, body)
    expected = in_memory(cut, spec, "spectral", [CATS])
    got = dict(zip(reply.ids, reply.scores, strict=True))
    got.pop(WITHOUT_TEXT)
    assert got == pytest.approx(expected, abs=1e-4)
    assert reply.json()["ttc"]["encoder"] == cut.identity.key != encoder.identity.key
    assert whole.json()["ttc"]["encoder"] == encoder.identity.key
    assert whole.scores != reply.scores


@pytest.mark.parametrize("method", ["spectral", "maxsim", "dense"])
def test_an_encoder_with_the_class_tokens_vector_is_served_as_it_is_evaluated(
    stack: SearchStack, index_name: str, class_token: Encoder, method: str
) -> None:
    spec = make_index(stack.engine, index_name, class_token)
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore(method)}
    with gateway_to(stack.engine, class_token, encoder="any", max_window=300) as gateway:
        reply = search(gateway, index_name, body)
    got = dict(zip(reply.ids, reply.scores, strict=True))
    got.pop(WITHOUT_TEXT)
    assert got == pytest.approx(in_memory(class_token, spec, method, [CATS]), abs=1e-4)


def test_gateway_is_ready_when_encoders_of_indices_are_loaded(
    stack: SearchStack, index_name: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_ttc.serving.warm_up._MAX_ENCODERS", 1000)  # other tests may have indices on this node
    cut = load_encoder("minilm@onnx", dims=96)
    make_index(stack.engine, index_name, cut)
    foreign = f"{index_name}-foreign"
    mapping = {"mappings": {"_meta": {ROOT: {"encoder": IDENTITY.as_dict()}}}}
    assert call(stack.engine, "PUT", f"/{foreign}", mapping).status == 200
    settings = GatewaySettings(engine=stack.engine, port=0, encoder="minilm@onnx")
    upstream = Upstream(settings)
    loaded: list[str] = []

    def variant(identity: EncoderIdentity, _name: str, _folder: Path) -> Encoder:
        loaded.append(identity.key)
        return load_encoder("minilm@onnx", dims=identity.dims, max_length=identity.max_length)

    async def warm() -> tuple[bool, bool, bool, str | None]:
        pool = BoundedPool("encoding", threads=1, queue=8)
        encoders = Encoders((settings.encoder,), settings.cache_dir, lambda _name, _folder: encoder, variant, pool)
        warm_up = WarmUp(encoders, EngineClient(upstream))
        async with upstream:
            await warm_up.load_first()
            before = warm_up.done
            await warm_up.run()
        pool.close()
        return before, warm_up.done, encoders.has(cut.identity.key), warm_up.unranked.get(foreign)

    assert asyncio.run(warm()) == (False, True, True, IDENTITY.key)
    assert cut.identity.key in loaded
    with gateway_to(stack.engine, encoder, encoder="minilm@onnx", admin_token="secret") as gateway:
        assert "unranked" not in call(gateway, "GET", "/_ttc/ready").json()
        ready = call(gateway, "GET", "/_ttc/ready", headers={"authorization": "Bearer secret"}).json()
    assert ready["unranked"][foreign] == IDENTITY.key


def test_gateway_waits_for_an_engine_that_does_not_answer_yet(encoder: Encoder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    settings = GatewaySettings(engine=nobody, port=0)

    async def warm() -> bool:
        pool = BoundedPool("encoding", threads=1, queue=8)
        encoders = Encoders((settings.encoder,), settings.cache_dir, lambda _name, _folder: encoder, no_variant, pool)
        async with Upstream(settings) as upstream:
            warm_up = WarmUp(encoders, EngineClient(upstream))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(warm_up.run(), 2)
        pool.close()
        return warm_up.done

    assert asyncio.run(warm()) is False


def no_variant(identity: EncoderIdentity, _name: str, _folder: Path) -> Encoder:
    raise AssertionError(identity)


@given(st.integers(1, 384), st.integers(1, 256))
def test_an_identity_is_found_again_in_the_key_of_what_it_is_cut_to(dims: int, max_length: int) -> None:
    cut = replace(IDENTITY, dims=dims, max_length=max_length)
    assert IDENTITY.variant(cut.key) == cut


@pytest.mark.parametrize(
    "key",
    [
        replace(IDENTITY, dims=385).key,
        replace(IDENTITY, dims=0).key,
        replace(IDENTITY, max_length=257).key,
        replace(IDENTITY, dims=128, revision="other").key,
        replace(IDENTITY, dims=128, model="other").key,
        replace(IDENTITY, dims=128, prompts="").key,
        replace(IDENTITY, dims=128, adapter="").key,
        IDENTITY.key.replace("384", "0128"),
        IDENTITY.key.replace("384x256", "128"),
        "",
    ],
)
def test_encoder_cannot_be_cut_to_another_identity(key: str) -> None:
    assert IDENTITY.variant(key) is None


class Loaded:
    """Only as much of an encoder as is asked for before anything is encoded."""

    def __init__(self, identity: EncoderIdentity) -> None:
        self.identity = identity


async def test_few_variants_are_kept_and_another_model_is_refused() -> None:
    loads: list[str] = []

    def load_variant(identity: EncoderIdentity, name: str, folder: Path) -> Encoder:
        loads.append(identity.key)
        return Loaded(identity)  # type: ignore[return-value]

    pool = BoundedPool("testing", threads=1, queue=8)
    encoders = Encoders(["a"], Path(), lambda *_: Loaded(IDENTITY), load_variant, pool)  # type: ignore[arg-type]
    keys = [replace(IDENTITY, dims=dims).key for dims in range(1, 6)]
    for key in (*keys, keys[-1], keys[0]):
        assert (await encoders.serving(key, "books")).identity.key == key
    assert loads == [*keys, keys[0]]
    assert (await encoders.serving(IDENTITY.key, "books")).identity is IDENTITY
    with pytest.raises(EncoderMismatch, match="books"):
        await encoders.serving(replace(IDENTITY, dims=999).key, "books")
    pool.close()


def test_an_index_made_again_under_its_name_with_other_storage_meets_no_old_features(
    stack: SearchStack, index_name: str, encoder: Encoder
) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}
    make_index(stack.engine, index_name, encoder, tokens="none")
    assert search(stack.gateway, index_name, body).json()["ttc"]["applied"] is False
    for max_tokens in (64, 8):
        call(stack.engine, "DELETE", f"/{index_name}")
        spec = make_index(stack.engine, index_name, encoder, max_tokens=max_tokens)
        reply = search(stack.gateway, index_name, body)
        assert reply.status == 200
        expected = in_memory(encoder, spec, "spectral", [CATS])
        got = dict(zip(reply.ids, reply.scores, strict=True))
        got.pop(WITHOUT_TEXT)
        assert got == pytest.approx(expected, abs=1e-4)
