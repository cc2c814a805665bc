"""Encoders of ONNX files, without torch and transformers: small to install, quick to start."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from es_ttc.common.processors import processor_count
from es_ttc.encoders.base import Role
from es_ttc.encoders.graphs import TokenGraph, shared_graph
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


def load_onnx(files: ModelFiles, options: LoadOptions) -> TextEncoder:
    """Load a model's ONNX file; see :func:`es_ttc.encoders.load_encoder`."""
    if files.onnx is None:
        raise ConfigurationError(f"encoder [{files.model}] has no ONNX model: take @torch")
    config = read_model_file(files.folder / "config_sentence_transformers.json")
    prompts = role_prompts(config.get("prompts") or {}, config.get("default_prompt_name"))
    graph = graph_of(files.onnx, options)
    model = OnnxModel(graph, *_pooling(files.folder))
    identity = identity_of(
        files,
        options,
        own_dims=graph.dims,
        own_max_length=files.max_length or max_length_of(files.folder),
        prompts=prompts,
        usual_dims=config.get("truncate_dim"),
    )
    tokenizer = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    reader = Reader(tokenizer, max_length=identity.max_length, prompts=prompts)
    backend = f"{graph.runtime}, {files.arithmetic}, cpu"
    return TextEncoder(identity, backend, reader, model, distinguishes_roles=prompts_differ(prompts))


def graph_of(path: Path, options: LoadOptions) -> TokenGraph:
    """Return the graph of a file as options ask for it."""
    return shared_graph(path, threads=options.threads or processor_count(), runtime=options.runtime)


class OnnxModel:
    """A model whose graph gives token embeddings; see :class:`es_ttc.encoders.text_encoder.WindowModel`."""

    def __init__(self, graph: TokenGraph, pooling: Pooling, include_prompt: bool) -> None:
        self._graph = graph
        self._pooling = pooling
        self._include_prompt = include_prompt

    def run(self, windows: Sequence[InputWindow], *, role: Role, tokens: bool) -> list[WindowVectors]:  # noqa: ARG002
        """Run every window separately."""
        pairs = zip(windows, self._graph.rows(windows), strict=True)
        return [WindowVectors(self._pooled(window, rows), rows if tokens else None) for window, rows in pairs]

    def _pooled(self, window: InputWindow, rows: Float32) -> Float32:
        # A window contains at least one token of the text, so there is a row to pool.
        return self._pooling(rows if self._include_prompt else rows[window.lead :])


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
            f"model folder [{folder}] pools by {list(found.modes)}: @onnx does one of {sorted(POOLING)}, take @torch"
        )
    return POOLING[found.modes[0]], found.include_prompt
