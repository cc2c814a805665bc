"""Graphs of ONNX files that give token embeddings, each on the runtime that is faster on this processor.

Each window is a run of its own, in parallel threads: dynamic quantisation scales activations over a whole batch, so a
text's vectors would depend on the other texts in it, and one run over several threads is slower.
"""

import importlib.util
import logging
import mmap
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from es_ttc.common.processors import instructions
from es_ttc.encoders.options import Runtime
from es_ttc.encoders.windows import InputWindow
from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32

logger = logging.getLogger(__name__)

Feed = Mapping[str, NDArray[np.int64]]

_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_INTEGER_PRODUCTS = (b"MatMulInteger", b"QLinearMatMul")

_graphs: WeakValueDictionary[Any, "TokenGraph"] = WeakValueDictionary()  # by file, its state, threads, runtime


class TokenGraph(ABC):
    """A graph that gives token embeddings; several threads may run it.

    Args:
        path: The file, for messages.
        inputs: Names of its inputs.
        outputs: Names and shapes of its outputs; a dimension that varies is no int.
        threads: Maximum number of windows that run at the same time.
    """

    runtime: ClassVar[str]
    """The runtime and its arithmetic, for display."""

    def __init__(
        self, path: Path, inputs: Collection[str], outputs: Sequence[tuple[str, Sequence[Any]]], threads: int
    ) -> None:
        self._inputs = frozenset(inputs)
        if not {"input_ids"} <= self._inputs <= _INPUTS:
            raise ConfigurationError(
                f"ONNX model [{path}] takes {sorted(self._inputs)}: only {sorted(_INPUTS)} are known, take @torch"
            )
        embeddings = [(name, shape[2]) for name, shape in outputs if len(shape) == 3]
        if not embeddings or not isinstance(embeddings[0][1], int):
            raise ConfigurationError(
                f"ONNX model [{path}] gives no token embeddings (batch, tokens, dims): take @torch"
            )
        self.output: str = embeddings[0][0]
        self.dims: int = embeddings[0][1]
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="es-ttc-onnx") if threads > 1 else None

    def rows(self, windows: Sequence[InputWindow]) -> list[Float32]:
        """Run every window separately and return its token embeddings, ``(t, d)``."""
        if self._executor is None or len(windows) < 2:
            return [self._run(self._feed(window)) for window in windows]
        # The longest first, so that no thread ends with a long one.
        order = sorted(range(len(windows)), key=lambda index: -len(windows[index].ids))
        results = list(self._executor.map(lambda index: self._run(self._feed(windows[index])), order))
        placed = dict(zip(order, results, strict=True))
        return [placed[index] for index in range(len(windows))]

    def _feed(self, window: InputWindow) -> Feed:
        ids = np.array([window.ids], dtype=np.int64)
        attended = np.ones_like(ids)
        attended[:, len(window.ids) - window.unattended :] = 0
        feed = {
            "input_ids": ids,
            "attention_mask": attended,
            "token_type_ids": np.array([window.type_ids], dtype=np.int64),
        }
        return {name: feed[name] for name in self._inputs}

    @abstractmethod
    def _run(self, feed: Feed) -> Float32:
        """Return the token embeddings of one window, ``(t, d)``."""


def shared_graph(path: Path, *, threads: int, runtime: Runtime = "auto") -> TokenGraph:
    """Return the graph of a file, the same one as long as something uses it: variants of a model have one graph."""
    state = path.stat() if path.exists() else None
    key = path, threads, runtime, state and (state.st_ino, state.st_size, state.st_mtime_ns)
    graph = _graphs.get(key)
    if graph is None:
        graph = _graphs[key] = _loaded(path, threads, runtime)
    return graph


def faster_runtime(*, openvino: bool, instruction_sets: Collection[str], integer_products: bool) -> Runtime:
    """Return the runtime for a graph on a processor.

    OpenVINO multiplies int8 where ONNX Runtime multiplies float32: more than twice as fast with AVX-512 VNNI, no faster
    without, and slower for graphs whose own products are of integers (measured: docs/results/encoders.md).

    Args:
        openvino: Whether OpenVINO is installed.
        instruction_sets: What :func:`es_ttc.common.processors.instructions` returns.
        integer_products: Whether the graph's own products are of integers.
    """
    return "openvino" if openvino and "avx512_vnni" in instruction_sets and not integer_products else "onnxruntime"


def _loaded(path: Path, threads: int, runtime: Runtime) -> TokenGraph:
    installed = importlib.util.find_spec("openvino") is not None
    chosen = runtime
    if runtime == "auto":
        chosen = faster_runtime(
            openvino=installed, instruction_sets=instructions(), integer_products=_has_integer_products(path)
        )
    if chosen == "openvino":
        from es_ttc.encoders.openvino_graph import OpenVinoGraph

        try:
            return OpenVinoGraph(path, threads=threads)
        except ConfigurationError as error:
            if runtime != "auto":
                raise
            logger.info("ONNX Runtime is taken: %s", error)
    from es_ttc.encoders.onnxruntime_graph import OnnxRuntimeGraph

    return OnnxRuntimeGraph(path, threads=threads)


def _has_integer_products(path: Path) -> bool:
    """Return whether a file names operators that multiply integers; a file that cannot be read does not."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name) >= 0 for name in _INTEGER_PRODUCTS)
    except (OSError, ValueError):  # mmap: an empty file
        return False
