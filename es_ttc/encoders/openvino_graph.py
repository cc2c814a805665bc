"""Graphs on OpenVINO, whose products with weights are of int8: faster than float32 where a processor has VNNI.

Weights have one scale for each output, activations one for each token and group of components, so a token's vector
depends on nothing outside its window.
"""

import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from es_ttc.common.processors import instructions
from es_ttc.encoders.batches import padded_length
from es_ttc.encoders.graphs import Feed, TokenGraph
from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32

# OpenVINO's converter of other formats is not needed, takes 20 MB and, when it is imported, reports that to its makers.
sys.modules.setdefault("openvino.tools.ovc", None)  # type: ignore[arg-type]
import openvino  # noqa: E402
from openvino import opset15 as operators  # noqa: E402

_GROUP = 128  # components of an activation that share a scale; 64 is closer by .0003 in cosine, and 5 to 8 % slower
_GREATEST = 127
_LONGEST_PADDED = 64  # tokens; every model has so many positions


class OpenVinoGraph(TokenGraph):
    """A graph on OpenVINO; a run uses one thread."""

    runtime = "openvino, int8 products"

    def __init__(self, path: Path, *, threads: int) -> None:
        core = openvino.Core()
        try:
            model = core.read_model(path)
            _quantise_weights(model)
            self._model = core.compile_model(model, "CPU", _options(threads))
        except RuntimeError as error:
            raise ConfigurationError(f"ONNX model [{path}] could not be loaded: {error}") from error
        inputs = [entry.any_name for entry in model.inputs]
        outputs = [(entry.any_name, [_size(part) for part in entry.partial_shape]) for entry in model.outputs]
        super().__init__(path, inputs, outputs, threads)
        self._requests: SimpleQueue[Any] = SimpleQueue()
        for _ in range(threads):
            self._requests.put(self._model.create_infer_request())

    def _run(self, feed: Feed) -> Float32:
        length = feed["input_ids"].shape[1]
        request = self._requests.get()
        try:
            output = request.infer(_padded(feed, length), share_inputs=True)[self.output][0]
        finally:
            self._requests.put(request)
        rows: Float32 = output[:length].astype(np.float32, copy=False)
        return rows


def _padded(feed: Feed, length: int) -> Feed:
    """Return the inputs of a short window with padding: a change of length takes as long as 16 tokens."""
    if "attention_mask" not in feed or length > _LONGEST_PADDED:
        return feed
    padding = (0, 0), (0, padded_length(length, _LONGEST_PADDED) - length)
    return {name: np.pad(values, padding) for name, values in feed.items()}


def _options(threads: int) -> dict[str, Any]:
    """Return how a graph is compiled: each stream a thread, on any processor, because processes share them."""
    return {
        "NUM_STREAMS": threads,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUP,
        "INFERENCE_PRECISION_HINT": "bf16" if "avx512_bf16" in instructions() else "f32",  # of attention
    }


def _size(dimension: Any) -> int | None:
    return dimension.get_length() if dimension.is_static else None


def _quantise_weights(model: Any) -> None:
    """Replace each matrix of weights, in whatever form the file has it, by int8 with a scale for each output."""
    for product in model.get_ordered_ops():
        if product.get_type_name() != "MatMul":
            continue
        weights = product.input_value(1)
        shape = weights.partial_shape
        if shape.is_dynamic or len(shape) != 2 or not _is_constant(weights.get_node()):
            continue
        values = openvino.Tensor(openvino.Type.f32, weights.get_shape())
        if weights.get_element_type() != openvino.Type.f32 or not openvino.Model([weights], []).evaluate([values], []):
            continue
        axis = 1 if product.get_attributes()["transpose_b"] else 0
        scales = np.abs(values.data).max(axis, keepdims=True) / _GREATEST
        scales[scales == 0] = 1
        integers = operators.constant(np.rint(values.data / scales).astype(np.int8))
        quantised = operators.multiply(operators.convert(integers, "f32"), operators.constant(scales))
        product.input(1).replace_source_output(quantised.output(0))


def _is_constant(node: Any) -> bool:
    """Return whether a node depends on no input of the model."""
    if node.get_type_name() == "Constant":
        return True
    inputs = node.input_values()
    return bool(inputs) and all(_is_constant(value.get_node()) for value in inputs)
