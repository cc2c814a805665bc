"""Real encoders, each loaded once, and model folders made from MiniLM's own files.

torch takes seconds to import: only files of slow tests do.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders import Encoder, load_encoder
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.packages import minilm, minilm_for_torch

SENTENCES = [
    "Dogs chase cats in the garden.",
    "Vitamin D and bone density in older adults: a randomised trial.",
    "naïve café, ΑΒΓ and 東京",
    "Short",
    "The engine keeps the vectors of every token beside the document, so that a window can be scored in one batch.",
]
LONG = " ".join(f"Sentence {number} speaks of river {number * 7} and of the bridge over it." for number in range(40))

ONNX_RUNTIMES = ("onnxruntime", "openvino, int8 products")  # which of them is the processor's

MakeFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def hashes(tmp_path_factory: pytest.TempPathFactory) -> FileHashes:
    return FileHashes(tmp_path_factory.mktemp("hashes"))


@pytest.fixture(scope="session")
def float32() -> Encoder:
    """MiniLM on torch in float32."""
    return load_encoder("minilm@torch:float32")


@pytest.fixture(scope="session")
def bfloat16() -> Encoder:
    """MiniLM on torch in bfloat16."""
    return load_encoder("minilm@torch:bfloat16")


@pytest.fixture(scope="session")
def onnxruntime() -> Encoder:
    """MiniLM on ONNX Runtime."""
    return load_encoder("minilm@onnx:onnxruntime")


@pytest.fixture(scope="session")
def openvino() -> Encoder:
    """MiniLM on OpenVINO."""
    pytest.importorskip("es_ttc.encoders.openvino_graph", reason="OpenVINO is installed for x86-64 on Linux")
    return load_encoder("minilm@onnx:openvino")


@pytest.fixture(scope="session", params=["onnxruntime", "openvino", "float32", "bfloat16"])
def any_encoder(request: pytest.FixtureRequest) -> Encoder:
    """MiniLM on every backend, runtime and arithmetic."""
    encoder: Encoder = request.getfixturevalue(request.param)
    return encoder


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory, hashes: FileHashes) -> MakeFolder:
    """Return a maker of model folders: MiniLM's files for both backends, with some configuration replaced."""
    files = minilm_for_torch(hashes)
    onnx = minilm(hashes).onnx
    assert onnx is not None

    def make(name: str = "model", configs: dict[str, Any] | None = None) -> Path:
        folder = tmp_path_factory.mktemp("models") / name
        skipped = shutil.ignore_patterns("*.safetensors", "README.md", "*.py")
        shutil.copytree(files.folder, folder, ignore=skipped)
        (folder / "model.safetensors").symlink_to(files.folder / "model.safetensors")
        (folder / "model.onnx").symlink_to(onnx)
        for path, content in (configs or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(json.dumps(content), encoding="utf-8")
        return folder

    return make
