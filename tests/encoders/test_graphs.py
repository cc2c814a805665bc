"""ONNX graphs that several encoders share."""

import os
from pathlib import Path

from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.onnx import shared_graph
from es_ttc.encoders.packages import minilm


def test_a_file_is_loaded_once_while_it_is_used_and_again_when_it_has_changed(
    hashes: FileHashes, tmp_path: Path
) -> None:
    model = minilm(hashes).onnx
    assert model is not None
    path = tmp_path / "model.onnx"
    path.write_bytes(model.read_bytes())
    first = shared_graph(path, threads=1)
    assert shared_graph(path, threads=1) is first
    assert shared_graph(path, threads=2) is not first
    os.utime(path, ns=(1, 1))
    assert shared_graph(path, threads=1) is not first
