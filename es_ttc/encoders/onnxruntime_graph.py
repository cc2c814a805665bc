"""Graphs on ONNX Runtime, in the arithmetic of the file."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from es_ttc.encoders.graphs import Feed, TokenGraph
from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32


def onnx_session(path: Path) -> Any:
    """Return a session on the CPU whose every run uses one thread; several threads may run it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise ConfigurationError(f"ONNX model [{path}] could not be loaded: {error}") from error


class OnnxRuntimeGraph(TokenGraph):
    """A graph on ONNX Runtime."""

    runtime = "onnxruntime"

    def __init__(self, path: Path, *, threads: int) -> None:
        self._session = onnx_session(path)
        inputs = [entry.name for entry in self._session.get_inputs()]
        outputs = [(entry.name, entry.shape) for entry in self._session.get_outputs()]
        super().__init__(path, inputs, outputs, threads)

    def _run(self, feed: Feed) -> Float32:
        (output,) = self._session.run([self.output], feed)
        rows: Float32 = output[0].astype(np.float32, copy=False)
        return rows
