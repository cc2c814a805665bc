"""ONNX graphs that several encoders share, and the runtime of each."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from es_ttc.encoders.graphs import TokenGraph, faster_runtime, shared_graph
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.options import Runtime
from es_ttc.encoders.packages import colbert_small, minilm
from es_ttc.encoders.windows import InputWindow

INSTALLED: list[Runtime] = ["onnxruntime", *(["openvino"] if importlib.util.find_spec("openvino") else [])]  # type: ignore[list-item]


@pytest.fixture
def path(hashes: FileHashes, tmp_path: Path) -> Path:
    model = minilm(hashes).onnx
    assert model is not None
    copy = tmp_path / "model.onnx"
    copy.write_bytes(model.read_bytes())
    return copy


def test_a_file_is_loaded_once_while_it_is_used_and_again_when_it_has_changed(path: Path) -> None:
    first = shared_graph(path, threads=1)
    assert shared_graph(path, threads=1) is first
    assert shared_graph(path, threads=2) is not first
    os.utime(path, ns=(1, 1))
    assert shared_graph(path, threads=1) is not first


@pytest.mark.parametrize("runtime", INSTALLED)
def test_the_number_of_threads_changes_no_vector(path: Path, runtime: Runtime) -> None:
    windows = [
        InputWindow([101, *range(2000, 2000 + length), 102], [0] * (length + 2), np.zeros((length + 2, 2), np.int32), 1)
        for length in (3, 14, 60, 250, 14, 3)
    ]
    in_one, in_three = (shared_graph(path, threads=threads, runtime=runtime).rows(windows) for threads in (1, 3))
    for window, mine, other in zip(windows, in_one, in_three, strict=True):
        assert mine.shape == (len(window.ids), 384)
        assert np.array_equal(mine, other)


@pytest.mark.parametrize(
    ("openvino", "instruction_sets", "integer_products", "expected"),
    [
        (True, {"avx2", "avx512f", "avx512_vnni"}, False, "openvino"),
        (True, {"avx2", "avx512f", "avx512_vnni"}, True, "onnxruntime"),
        (True, {"avx2", "avx512f"}, False, "onnxruntime"),
        (True, {"avx2", "avx_vnni"}, False, "onnxruntime"),  # of 256 bits: not measured
        (True, set(), False, "onnxruntime"),  # ARM, and systems other than Linux
        (False, {"avx2", "avx512f", "avx512_vnni"}, False, "onnxruntime"),
    ],
)
def test_the_runtime_follows_the_processor_and_the_graph(
    openvino: bool, instruction_sets: set[str], integer_products: bool, expected: Runtime
) -> None:
    arguments = {"openvino": openvino, "integer_products": integer_products}
    assert faster_runtime(instruction_sets=instruction_sets, **arguments) == expected


def test_a_graph_of_integer_products_stays_on_onnx_runtime(
    hashes: FileHashes, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_ttc.encoders.graphs.instructions", lambda: {"avx512_vnni"})
    integers = colbert_small(hashes, tmp_path).onnx
    assert integers is not None
    graphs: list[TokenGraph] = [shared_graph(each, threads=1) for each in (integers, path)]
    expected = ["onnxruntime", "openvino, int8 products" if "openvino" in INSTALLED else "onnxruntime"]
    assert [graph.runtime for graph in graphs] == expected


@pytest.mark.skipif("openvino" not in INSTALLED, reason="OpenVINO is installed for x86-64 on Linux")
def test_onnx_runtime_has_what_openvino_cannot_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("es_ttc.encoders.graphs.instructions", lambda: {"avx512_vnni"})

    def refuse(*arguments: object) -> None:
        raise RuntimeError("an operator is unknown")

    monkeypatch.setattr("es_ttc.encoders.openvino_graph.openvino.Core.read_model", refuse)
    assert shared_graph(path, threads=1).runtime == "onnxruntime"
