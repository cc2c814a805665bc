"""No library that es-ttc loads reports its use to anyone."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_SWITCHES = (
    "DO_NOT_TRACK",
    "HF_HUB_DISABLE_TELEMETRY",
    "ORT_DISABLE_TELEMETRY",
    "VLLM_DO_NOT_TRACK",
    "VLLM_NO_USAGE_STATS",
)
RUNTIMES = tuple(name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name))
_ENCODE = f"""
import os, socket
from es_ttc.encoders import load_encoder

def refuse(*address, **_):
    raise AssertionError(f"a host is looked up: {{address}}")

socket.getaddrinfo = refuse
for runtime in {RUNTIMES!r}:
    load_encoder(f"minilm@onnx:{{runtime}}").encode(["a text"])
print([os.environ.get(name) for name in {_SWITCHES!r}])
"""


def test_an_encoder_writes_no_usage_data_and_looks_up_no_host(tmp_path: Path) -> None:
    cleared = {name: value for name, value in os.environ.items() if name not in _SWITCHES}
    environment = {**cleared, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    told = subprocess.run(
        [sys.executable, "-c", _ENCODE], env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert told.strip() == str(["1"] * len(_SWITCHES))
    written = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if not path.startswith("cache/es-ttc/")] == []
