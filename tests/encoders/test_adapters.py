"""LoRA adapters by name: what they do to vectors, what they are called, and what is refused."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from es_ttc.encoders import CachedEncoder, Encoder, load_encoder, packages
from es_ttc.encoders.adapters import WEIGHTS, shipped
from es_ttc.encoders.base import name_in, or_folder
from es_ttc.encoders.hashing import ADAPTER_CONFIG, FileHashes
from es_ttc.errors import ConfigurationError
from es_ttc.index.mappings.encoder import load_encoder_for
from es_ttc.rescorers.programs.encoding import encode_fn
from tests.encoders.conftest import LONG, SENTENCES, MakeFolder
from tests.encoders.test_backends import assert_same, unit
from tests.support.adapters import make_adapter

NAME = "minilm@torch:float32"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two adapters, ``law`` and ``medicine``."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("law", "medicine")):
        make_adapter(folder / name, seed, cache=folder)
    return folder


@pytest.fixture(scope="module")
def law(adapters: Path) -> Encoder:
    return load_encoder(NAME, adapter=str(adapters / "law"))


@pytest.fixture(scope="module")
def shipping(make_folder: MakeFolder, adapters: Path) -> Path:
    """A model that ships ``law`` and a pair of adapters for the two roles."""
    folder = make_folder()
    shutil.copytree(adapters / "law", folder / "adapters" / "law")
    shutil.copytree(adapters / "medicine", folder / "adapters" / "retrieval.query")
    shutil.copytree(adapters / "law", folder / "adapters" / "retrieval.passage")
    return folder


def test_vectors_are_those_of_peft(adapters: Path, law: Encoder, float32: Encoder, hashes: FileHashes) -> None:
    from peft import PeftModel
    from transformers import AutoModel, AutoTokenizer

    folder = packages.minilm_for_torch(hashes).folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = PeftModel.from_pretrained(AutoModel.from_pretrained(folder), str(adapters / "law")).eval()
    own, plain = law.encode(SENTENCES), float32.encode(SENTENCES)
    for position, text in enumerate(SENTENCES):
        with torch.inference_mode():
            rows = reference(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        np.testing.assert_allclose(own.tokens[position], unit(rows), atol=1e-5)
        np.testing.assert_allclose(own.pooled[position], unit(rows.mean(axis=0)), atol=1e-5)
    assert (own.pooled * plain.pooled).sum(axis=1).max() < 0.95


def test_the_identity_names_the_adapter_by_its_content(
    adapters: Path, law: Encoder, float32: Encoder, tmp_path: Path
) -> None:
    medicine = load_encoder(f"{NAME}+{adapters / 'medicine'}")
    assert law.identity.adapter.startswith("law@")
    assert len({encoder.identity.key for encoder in (float32, law, medicine)}) == 3
    assert law.identity.key == f"{float32.identity.key}+{law.identity.adapter}"
    assert name_in(law.identity.key) == "minilm+law"
    assert "es-ttc train" in or_folder(law.identity.key)
    assert or_folder(float32.identity.key) == ""
    assert name_in(float32.identity.key) == "minilm"
    copy = shutil.copytree(adapters / "law", tmp_path / "law")
    assert load_encoder(NAME, adapter=str(copy)).identity == law.identity
    config = json.loads((copy / ADAPTER_CONFIG).read_text())
    (copy / ADAPTER_CONFIG).write_text(json.dumps(config | {"lora_alpha": 9}))
    assert load_encoder(NAME, adapter=str(copy)).identity != law.identity


def test_a_text_has_the_same_vectors_whatever_its_neighbours(law: Encoder) -> None:
    texts = [*SENTENCES, LONG[:2200]]
    together = law.encode(texts)
    for position in (0, len(SENTENCES)):
        alone = law.encode([texts[position]])
        assert np.array_equal(alone.pooled[0], together.pooled[position])
        assert np.array_equal(alone.tokens[0], together.tokens[position])


def test_the_cache_keeps_encoders_with_and_without_adapter_apart(
    law: Encoder, float32: Encoder, tmp_path: Path
) -> None:
    for encoder in (float32, law, float32):
        assert_same(CachedEncoder(encoder, tmp_path).encode(SENTENCES[:2]), encoder.encode(SENTENCES[:2]))


def test_a_model_ships_adapters(shipping: Path, law: Encoder, float32: Encoder) -> None:
    assert shipped(shipping) == ["law", "retrieval", "retrieval.passage", "retrieval.query"]
    plain = load_encoder(f"{shipping}@torch:float32")
    assert plain.identity.revision == float32.identity.revision
    encoder = load_encoder(f"{shipping}@torch:float32", adapter="law")
    assert encoder.identity.adapter == law.identity.adapter
    assert_same(encoder.encode(SENTENCES[:2]), law.encode(SENTENCES[:2]))


def test_each_role_has_its_own_of_a_pair(shipping: Path, adapters: Path, law: Encoder) -> None:
    medicine = load_encoder(NAME, adapter=str(adapters / "medicine"))
    pair = load_encoder(f"{shipping}@torch:float32", adapter="retrieval")
    assert pair.identity.adapter.startswith("retrieval@")
    assert_same(pair.encode(SENTENCES[:2]), law.encode(SENTENCES[:2]))
    assert_same(pair.encode(SENTENCES[:2], role="query"), medicine.encode(SENTENCES[:2], role="query"))
    assert pair.distinguishes_roles
    assert pair.shortened(16).distinguishes_roles
    assert not law.distinguishes_roles


def test_the_adapter_of_an_index_is_loaded_where_the_model_ships_it(
    shipping: Path, adapters: Path, law: Encoder, float32: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{shipping}@torch:float32"
    wanted = load_encoder(name, adapter="law", dims=128).identity
    assert load_encoder(name).identity.variant(wanted.key) == wanted
    assert load_encoder_for(wanted, name).identity == wanted
    # An adapter that merely lies where we run is not the model's: an index must not choose what is read.
    monkeypatch.chdir(adapters)
    assert load_encoder_for(law.identity, NAME).identity == float32.identity
    assert load_encoder_for(law.identity, "minilm@onnx").identity == float32.identity
    medicine = load_encoder(NAME, adapter="medicine").identity
    assert load_encoder_for(law.identity, f"{NAME}+medicine").identity == medicine


def test_a_loaded_model_gives_the_adapters_that_it_ships(shipping: Path, law: Encoder, tmp_path: Path) -> None:
    plain = load_encoder(f"{shipping}@torch:float32")
    assert plain.adapted("zzz") is None
    found = plain.adapted("law")
    assert found is plain.adapted("law")
    assert found is not None
    assert_same(found.encode(SENTENCES[:2]), law.encode(SENTENCES[:2]))
    pair = found.adapted("retrieval")
    assert pair is not None
    assert pair.identity.adapter.startswith("retrieval@")
    short = plain.shortened(8).adapted("law")
    assert short is not None
    assert_same(short.encode([LONG[:300]]), law.shortened(8).encode([LONG[:300]]))
    cached = CachedEncoder(plain, tmp_path)
    assert cached.adapted("zzz") is None
    kept = cached.adapted("law")
    assert kept is not None
    for encoder in (kept, cached, kept):
        expected = plain if encoder is cached else law
        assert_same(encoder.encode(SENTENCES[:2]), expected.encode(SENTENCES[:2]))


def test_programs_see_the_models_adapters(shipping: Path, adapters: Path, law: Encoder) -> None:
    folder = shipping.parent / "with-matching"
    shutil.copytree(shipping, folder)
    shutil.copytree(adapters / "law", folder / "adapters" / "text-matching")
    plain = load_encoder(f"{folder}@torch:float32")
    encode = encode_fn(plain)
    own = plain.encode(SENTENCES[:2], tokens=False).pooled
    np.testing.assert_array_equal(encode(SENTENCES[:2], "text-matching"), law.encode(SENTENCES[:2]).pooled)
    np.testing.assert_array_equal(encode(SENTENCES[:2], "classification"), own)
    np.testing.assert_array_equal(encode(SENTENCES[:2], "retrieval.passage"), own)
    cut = encode([LONG[:300]], "text-matching", dimensions=64, max_length=8)
    expected = law.shortened(8).encode([LONG[:300]]).pooled[:, :64]
    np.testing.assert_allclose(cut, expected / np.linalg.norm(expected), atol=1e-6)


def test_hub_names_come_from_the_local_cache(
    adapters: Path, law: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--acme--law"
    commit = "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    shutil.copytree(adapters / "law", repository / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert load_encoder(f"{NAME}+acme/law").identity == law.identity
    with pytest.raises(ConfigurationError, match=r"\[acme/other\]"):
        load_encoder(f"{NAME}+acme/other")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{shipping}@torch+lwa", r"adapter \[lwa\] is no folder .* did you mean \[law\]\?"),
        ("{shipping}@torch+zzz", r"valid are \[law\], \[retrieval\], \[retrieval.passage\], \[retrieval.query\]"),
        ("minilm@torch+law", "the model ships none, so name a folder"),
        ("minilm@torch+/", r"adapter \[/\] is no folder"),
        ("minilm@onnx+law", "only the torch backend applies adapters, take @torch"),
        ("{adapters}/law", "is an adapter: name its model and it"),
    ],
)
def test_invalid_adapter_names_are_refused(shipping: Path, adapters: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_encoder(name.format(shipping=shipping, adapters=adapters))


def test_an_adapter_is_named_once() -> None:
    with pytest.raises(ConfigurationError, match=r"\[minilm\+law\].*\[medicine\]"):
        load_encoder("minilm+law", adapter="medicine")


def change_config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / ADAPTER_CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "adapter_model.bin")
    (folder / WEIGHTS).unlink()


def change_weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)

    return rewrite


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (pickled, r"has no adapter_model.safetensors: pickled weights \(.bin\) are not read"),
        (lambda folder: (folder / ADAPTER_CONFIG).write_text("{"), "its configuration cannot be read"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"nothing"), "does not fit the encoder"),
        (lambda folder: (folder / ADAPTER_CONFIG).write_text('{"peft_type": "IA3"}'), "only LoRA"),
        (change_config(target_modules=["nowhere"]), "does not fit the encoder"),
        (change_config(r=8), "does not fit the encoder: .*size mismatch"),
        (change_config(target_modules=["query"]), "has weights that the encoder has no place for"),
        (change_weights(lambda weights: dict(list(weights.items())[1:])), "lacks weights"),
        (change_weights(lambda weights: {key: rows * torch.nan for key, rows in weights.items()}), "does not fit"),
    ],
)
def test_an_adapter_of_another_model_or_form_is_refused(
    adapters: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = shutil.copytree(adapters / "law", tmp_path / "law")
    damage(folder)
    with pytest.raises(ConfigurationError, match=message):
        load_encoder(NAME, adapter=str(folder))


def test_peft_is_asked_for_where_it_is_missing(adapters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else real(name))
    with pytest.raises(ConfigurationError, match=r"\[peft\].*pip install 'es-ttc\[adapters\]'"):
        load_encoder(NAME, adapter=str(adapters / "law"))
