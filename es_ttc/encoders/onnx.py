"""Encoders on ONNX Runtime, without torch and transformers: small to install, quick to start.

Each window is a run of its own, in parallel threads: dynamic quantisation scales activations over a whole batch, so a
text's vectors would depend on the other texts in it, and one run over several threads is slower.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from es_ttc.encoders.base import Role
from es_ttc.encoders.kind import max_length_of, pooling_of, read_model_file
from es_ttc.encoders.options import LoadOptions, identity_of
from es_ttc.encoders.packages import ModelFiles
from es_ttc.encoders.text_encoder import TextEncoder, WindowVectors
from es_ttc.encoders.windows import InputWindow, Reader, prompts_differ, role_prompts
from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32

Pooling = Callable[[Float32], Float32]

POOLING: Mapping[str, Pooling] = {
    "mean": lambda rows: rows.mean(axis=0),
    "cls": lambda rows: rows[0],
    "lasttoken": lambda rows: rows[-1],
    "max": lambda rows: rows.max(axis=0),
}
"""Functions from a window's token rows ``(t, d)`` to its pooled vector ``(d,)``, by sentence-transformers' names."""

_graphs: WeakValueDictionary[Any, "OnnxGraph"] = WeakValueDictionary()  # by file, its state, threads
_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})


def load_onnx(files: ModelFiles, options: LoadOptions) -> TextEncoder:
    """Load a model on ONNX Runtime; see :func:`es_ttc.encoders.load_encoder`."""
    if files.onnx is None:
        raise ConfigurationError(f"encoder [{files.model}] has no ONNX model: take @torch")
    config = read_model_file(files.folder / "config_sentence_transformers.json")
    prompts = role_prompts(config.get("prompts") or {}, config.get("default_prompt_name"))
    model = OnnxModel(files.onnx, *_pooling(files.folder), threads=options.threads or os.cpu_count() or 1)
    identity = identity_of(
        files,
        options,
        own_dims=model.dims,
        own_max_length=files.max_length or max_length_of(files.folder),
        prompts=prompts,
        usual_dims=config.get("truncate_dim"),
    )
    tokenizer = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    reader = Reader(tokenizer, max_length=identity.max_length, prompts=prompts)
    backend = f"onnxruntime, {files.arithmetic}, cpu"
    return TextEncoder(identity, backend, reader, model, distinguishes_roles=prompts_differ(prompts))


class OnnxModel:
    """A model whose graph gives token embeddings; see :class:`es_ttc.encoders.text_encoder.WindowModel`."""

    def __init__(self, path: Path, pooling: Pooling, include_prompt: bool, *, threads: int) -> None:
        self._graph = shared_graph(path, threads=threads)
        self._pooling = pooling
        self._include_prompt = include_prompt

    @property
    def dims(self) -> int:
        """Number of components of a vector."""
        return self._graph.dims

    def run(self, windows: Sequence[InputWindow], *, role: Role, tokens: bool) -> list[WindowVectors]:  # noqa: ARG002
        """Run every window separately."""
        pairs = zip(windows, self._graph.rows(windows), strict=True)
        return [WindowVectors(self._pooled(window, rows), rows if tokens else None) for window, rows in pairs]

    def _pooled(self, window: InputWindow, rows: Float32) -> Float32:
        # A window contains at least one token of the text, so there is a row to pool.
        return self._pooling(rows if self._include_prompt else rows[window.lead :])


def shared_graph(path: Path, *, threads: int) -> "OnnxGraph":
    """Return the graph of a file, the same one as long as something uses it: variants of a model have one graph."""
    state = path.stat() if path.exists() else None
    key = path, threads, state and (state.st_ino, state.st_size, state.st_mtime_ns)
    graph = _graphs.get(key)
    if graph is None:
        graph = _graphs[key] = OnnxGraph(path, threads=threads)
    return graph


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


class OnnxGraph:
    """A graph that gives token embeddings; several threads may run it."""

    def __init__(self, path: Path, *, threads: int) -> None:
        self._session = onnx_session(path)
        self._inputs = frozenset(entry.name for entry in self._session.get_inputs())
        if not {"input_ids"} <= self._inputs <= _INPUTS:
            raise ConfigurationError(
                f"ONNX model [{path}] takes {sorted(self._inputs)}: only {sorted(_INPUTS)} are known, take @torch"
            )
        outputs = [entry for entry in self._session.get_outputs() if len(entry.shape) == 3]
        if not outputs or not isinstance(outputs[0].shape[2], int):
            raise ConfigurationError(
                f"ONNX model [{path}] gives no token embeddings (batch, tokens, dims): take @torch"
            )
        self.output: str = outputs[0].name
        self.dims: int = outputs[0].shape[2]
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="es-ttc-onnx") if threads > 1 else None

    def rows(self, windows: Sequence[InputWindow]) -> list[Float32]:
        """Run every window separately and return its token embeddings, ``(t, d)``."""
        if self._executor is None or len(windows) < 2:
            return [self._run(window) for window in windows]
        # The longest first, so that no thread ends with a long one.
        order = sorted(range(len(windows)), key=lambda index: -len(windows[index].ids))
        results = list(self._executor.map(lambda index: self._run(windows[index]), order))
        placed = dict(zip(order, results, strict=True))
        return [placed[index] for index in range(len(windows))]

    def _run(self, window: InputWindow) -> Float32:
        ids = np.array([window.ids], dtype=np.int64)
        attended = np.ones_like(ids)
        attended[:, len(window.ids) - window.unattended :] = 0
        feed = {
            "input_ids": ids,
            "attention_mask": attended,
            "token_type_ids": np.array([window.type_ids], dtype=np.int64),
        }
        (output,) = self._session.run([self.output], {name: feed[name] for name in self._inputs})
        rows: Float32 = output[0].astype(np.float32, copy=False)
        return rows


def _pooling(folder: Path) -> tuple[Pooling, bool]:
    """Return the pooling in a folder's configuration (default: mean), and whether the prompt is pooled too."""
    modules = read_model_file(folder / "modules.json", default=[])
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise ConfigurationError(
            f"model folder [{folder}] has modules {unknown}, which need sentence-transformers: @torch"
        )
    found = pooling_of(folder)
    if len(found.modes) != 1 or found.modes[0] not in POOLING:
        raise ConfigurationError(
            f"model folder [{folder}] pools by {list(found.modes)}: ONNX Runtime does one of {sorted(POOLING)}, "
            "take @torch"
        )
    return POOLING[found.modes[0]], found.include_prompt
