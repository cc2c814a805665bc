"""Encoders on sentence-transformers and torch: any of its models, on CUDA, Apple's MPS or the CPU."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers.utils import logging as transformers_logging

from es_ttc.common.processors import instructions
from es_ttc.encoders.adapters import Adapter
from es_ttc.encoders.base import Role
from es_ttc.encoders.batches import TokenBatch, fixed_batches
from es_ttc.encoders.devices import device_of
from es_ttc.encoders.options import Dtype, LoadOptions, identity_of
from es_ttc.encoders.packages import ModelFiles
from es_ttc.encoders.text_encoder import TextEncoder, WindowModel, WindowVectors
from es_ttc.encoders.windows import InputWindow, Reader, copied, prompts_differ, role_prompts
from es_ttc.errors import ConfigurationError

logger = logging.getLogger(__name__)

ARITHMETIC = {"float32": "float32", "bfloat16": "bfloat16 products"}
# Padded tokens per batch of documents: more is not faster (CPU), or may exceed the memory (accelerators).
_CPU_TOKENS = 1024
_ACCELERATOR_TOKENS = 16_384
DEFAULT_MAX_LENGTH = 512


def load_torch(
    files: ModelFiles,
    options: LoadOptions,
    adapter: Adapter | None,
    load_adapted: Callable[[str], TextEncoder | None],
) -> TextEncoder:
    """Load a model on sentence-transformers; see :func:`es_ttc.encoders.load_encoder`."""
    place = device_of(options.device, mps=True)
    name = choose_dtype(place) if options.dtype == "auto" else options.dtype
    folders: dict[Role, Path | None] = {"query": None, "document": None, **(adapter.folders if adapter else {})}
    # A role with an adapter has its own weights, so that texts of both roles can be encoded at the same time.
    models = {folder: _load(files.folder, place, folder) for folder in dict.fromkeys(folders.values())}
    if name == "bfloat16":
        for one in models.values():
            halve_products(one)
    runs = {
        folder: TorchModel(one, source=str(files.folder), bfloat16=name == "bfloat16") for folder, one in models.items()
    }
    sentence_model, model = models[folders["document"]], runs[folders["document"]]
    prompts = role_prompts(sentence_model.prompts, sentence_model.default_prompt_name)
    identity = identity_of(
        files,
        options,
        own_dims=model.dims,
        own_max_length=model.max_length,
        prompts=prompts,
        usual_dims=sentence_model.truncate_dim,
        adapter=adapter.identity if adapter else "",
    )
    for run in runs.values():
        run.max_length = identity.max_length
    reader = Reader(copied(model.tokenizer.backend_tokenizer), max_length=identity.max_length, prompts=prompts)
    by_role: WindowModel = model if len(runs) == 1 else ModelByRole(runs[folders["query"]], model)
    backend = f"sentence-transformers, {ARITHMETIC[name]}, {place.type}"
    roles = len(runs) > 1 or prompts_differ(prompts)
    return TextEncoder(identity, backend, reader, by_role, load_adapted, distinguishes_roles=roles)


def choose_dtype(device: torch.device, cpuinfo: Path = Path("/proc/cpuinfo")) -> Dtype:
    """Return the arithmetic that is fast on a device.

    bfloat16 is three times faster than float32 if the processor multiplies it (AMX, AVX-512 BF16), and eight times
    slower if it does not (measured with all-MiniLM-L6-v2). Accelerators and unknown processors get float32.
    """
    if device.type != "cpu":
        return "float32"
    return "bfloat16" if {"amx_bf16", "avx512_bf16"} & instructions(cpuinfo) else "float32"


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Disable transformers' progress bars on stderr."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def halve_products(model: torch.nn.Module) -> None:
    """Convert the weights of matrix products to bfloat16, and nothing else.

    Products take most of the time. Sums along the layers, their normalisation and the embeddings stay float32, which
    halves the error: all-mpnet-base-v2 keeps its float32 figures on LIMIT-small to .0015 (benchmarks/table_iv.py).
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.to(torch.bfloat16)


def load_model(folder: Path, device: torch.device) -> SentenceTransformer:
    """Load a model by its own library, in float32."""
    try:
        with no_progress_bars():
            return SentenceTransformer(
                str(folder), device=str(device), local_files_only=True, model_kwargs={"dtype": torch.float32}
            )
    except Exception as error:  # the library may raise any exception for a model's files
        raise ConfigurationError(f"model folder [{folder}] could not be loaded: {error}") from error


def _load(folder: Path, device: torch.device, adapter: Path | None) -> SentenceTransformer:
    model = load_model(folder, device)
    if adapter is not None:
        from es_ttc.encoders.lora import merge  # peft belongs to a separate extra

        merge(model[0].auto_model, adapter)
    return model.eval()


class TorchModel:
    """A sentence-transformers model; see :class:`es_ttc.encoders.text_encoder.WindowModel`.

    Documents run in batches of fixed shapes (:mod:`es_ttc.encoders.batches`); queries, which come alone and must be
    quick, in batches of one row: each text's vectors in a role are the same bit for bit whatever is encoded with it.

    Modules after the pooling (Dense, LayerNorm) are applied to every token vector too, so that both are of one space.
    """

    def __init__(self, model: SentenceTransformer, *, source: str, bfloat16: bool) -> None:
        modules = list(model.children())
        if len(modules) < 2 or not isinstance(modules[0], Transformer) or not isinstance(modules[1], Pooling):
            kinds = [type(module).__name__ for module in modules]
            raise ConfigurationError(
                f"model [{source}] is made of {kinds}: token vectors need Transformer, Pooling, ..."
            )
        if "message" in modules[0].modality_config or not getattr(model.tokenizer, "is_fast", False):
            raise ConfigurationError(f"model [{source}] has no fast tokenizer for plain text, which offsets need")
        self._transformer, self._pooling = modules[0], modules[1]
        self._after = [module for module in modules[2:] if not isinstance(module, Normalize)]
        self._device = model.device
        self._bfloat16 = bfloat16
        self._batches = batch_sizes(self._device)
        self.tokenizer: Any = model.tokenizer
        limit = model.max_seq_length or model.tokenizer.model_max_length
        self.max_length: int = limit if limit < 1_000_000 else DEFAULT_MAX_LENGTH
        self._pad = int(model.tokenizer.pad_token_id or 0)
        self._typed = "token_type_ids" in model.tokenizer.model_input_names
        width, pooled = modules[0].get_embedding_dimension(), self._pooling.pooling_output_dimension
        if width != pooled:
            raise ConfigurationError(
                f"model [{source}] pools {width} components to {pooled}: tokens have no such space"
            )
        self.dims: int = model.get_embedding_dimension() or width

    @torch.inference_mode()
    def run(self, windows: Sequence[InputWindow], *, role: Role, tokens: bool) -> list[WindowVectors]:
        """Run the windows in batches of fixed shapes."""
        budget, spare = self._batches[role]
        lengths = [len(window.ids) for window in windows]
        results: dict[int, WindowVectors] = {}
        for batch in fixed_batches(lengths, max_length=self.max_length, tokens=budget, spare=spare):
            members = [windows[index] for index in batch.members]
            pooled, matrix = self._forward(members, batch, tokens)
            for row, index in enumerate(batch.members):
                rows = None if matrix is None else matrix[row, : lengths[index]]
                results[index] = WindowVectors(pooled[row], rows)
        return [results[index] for index in range(len(windows))]

    def _forward(self, windows: Sequence[InputWindow], batch: TokenBatch, tokens: bool) -> tuple[Any, Any]:
        """Return ``(rows, d)`` pooled vectors and, if requested, ``(rows, length, d)`` token vectors, as float32."""
        features = padded_features(windows, batch, pad=self._pad, typed=self._typed, device=self._device)
        if not self._pooling.include_prompt:
            features["prompt_length"] = windows[0].lead
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            features = self._pooling(self._transformer(features))
            pooled = self._project(features["sentence_embedding"])
            matrix = self._project(features["token_embeddings"]) if tokens else None
        return float32_of(pooled), None if matrix is None else float32_of(matrix)

    def _project(self, vectors: torch.Tensor) -> torch.Tensor:
        for module in self._after:
            vectors = module({"sentence_embedding": vectors})["sentence_embedding"]
        return vectors


def batch_sizes(device: torch.device) -> dict[Role, tuple[int, int]]:
    """Return by role the padded tokens of one batch and its spare rows; queries run one by one.

    transformers leaves the mask out where nothing is padded. The CPU's attention gives the same bits either way; CUDA's
    flash kernels take no mask, so a full batch would run on others than one with padding.
    """
    document = (_CPU_TOKENS, 0) if device.type == "cpu" else (_ACCELERATOR_TOKENS, 1)
    return {"query": (1, 0), "document": document}


@dataclass(frozen=True, slots=True)
class ModelByRole:
    """A model for queries and one for documents; see :class:`es_ttc.encoders.text_encoder.WindowModel`."""

    query: WindowModel
    document: WindowModel

    def run(self, windows: Sequence[InputWindow], *, role: Role, tokens: bool) -> list[WindowVectors]:
        """Run the windows through the role's model."""
        model = self.query if role == "query" else self.document
        return model.run(windows, role=role, tokens=tokens)


def padded_features(
    windows: Sequence[InputWindow], batch: TokenBatch, *, pad: int, typed: bool, device: torch.device
) -> dict[str, Any]:
    """Return the tensors of a batch, padded to its shape."""
    ids = np.full((batch.rows, batch.length), pad, dtype=np.int64)
    mask = np.zeros_like(ids)
    types = np.zeros_like(ids)
    # A row without tokens would divide by zero: padding rows have one.
    mask[:, 0] = 1
    for row, window in enumerate(windows):
        length = len(window.ids)
        ids[row, :length] = window.ids
        mask[row, : length - window.unattended] = 1
        types[row, :length] = window.type_ids
    features = {"input_ids": ids, "attention_mask": mask, **({"token_type_ids": types} if typed else {})}
    return {name: torch.from_numpy(values).to(device) for name, values in features.items()}


def float32_of(tensor: torch.Tensor) -> Any:
    """Return a tensor as an array."""
    return tensor.float().cpu().numpy()
