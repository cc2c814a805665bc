"""Encoders by name: the model, its source and its backend."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

from es_ttc.common.validation import nearest
from es_ttc.encoders import adapters, fetched, hub, packages, trained
from es_ttc.encoders.base import TOKENS_FROM, Encoder
from es_ttc.encoders.hashing import ADAPTER_CONFIG, FileHashes, revision
from es_ttc.encoders.kind import ModelKind, require_served
from es_ttc.encoders.models import SHORT_NAMES, Backend, ModelDescription, named
from es_ttc.encoders.options import Dtype, LoadOptions, Runtime
from es_ttc.encoders.packages import ModelFiles, missing_package
from es_ttc.encoders.two_encoders import TwoEncoders
from es_ttc.errors import ConfigurationError
from es_ttc.settings import Settings

if TYPE_CHECKING:  # it needs the tokenizers library, which only the backends load
    from es_ttc.encoders.text_encoder import TextEncoder

_NEEDED: Mapping[Backend, tuple[str, ...]] = {
    "torch": ("sentence_transformers", "torch"),
    "onnx": ("onnxruntime", "tokenizers"),
    "vllm": ("tokenizers",),
}

_SUFFIX = re.compile(r"(?P<model>.+)@(?P<backend>[a-z]+)(:(?P<detail>[a-z0-9]+))?", re.DOTALL)


def load_encoder(
    name: str,
    *,
    adapter: str | None = None,
    cache_dir: Path | None = None,
    device: str = "auto",
    dtype: Dtype = "auto",
    dims: int | None = None,
    max_length: int | None = None,
    threads: int | None = None,
) -> Encoder:
    """Load an encoder.

    Args:
        name: A short name (one of :data:`SHORT_NAMES`), a sentence-transformers model's name on the hub, or a folder
            (of a model, or one that `es-ttc train` wrote); optionally followed by ``@torch``, ``@onnx`` or ``@vllm``
            (behind ``encoder_url``) for the backend, ``@torch:float32`` or ``@torch:bfloat16`` for its arithmetic too,
            or ``@onnx:onnxruntime`` or ``@onnx:openvino`` for its runtime; without one an ONNX file runs on the faster
            of those installed (:func:`es_ttc.encoders.graphs.faster_runtime`). The default backend follows from the
            name, never from what is installed: ONNX for all short names but ``mpnet`` and for folders whose weights are
            only ONNX, else torch. Optionally, at the end, ``+`` and the name of an adapter. Two names with ``|``
            between them: pooled vectors by the first encoder, token vectors by the second.
        adapter: An adapter, if the name has none: a folder that `es-ttc train` wrote, for any backend; else, for the
            torch backend, a LoRA adapter: one that the model ships, a folder, or a repository on the hub; see
            :func:`es_ttc.encoders.adapters.find_adapter`.
        cache_dir: Folder of assembled models and file hashes; None: ``ES_TTC_CACHE_DIR`` or the user's cache folder.
        device: ``auto`` (CUDA, then Apple's MPS, then the CPU) or a torch device; ONNX models run on the CPU.
        dtype: Arithmetic of the torch backend; ``auto`` is bfloat16 if the processor multiplies it natively. The name's
            own arithmetic takes precedence.
        dims: Number of components of a vector, for models trained for it (Matryoshka); None: all.
        max_length: Maximum number of tokens of one input; None: the model's own limit.
        threads: Number of concurrent windows of the ONNX backend; None: one per processor. Torch has its own setting
            (``torch.set_num_threads``, ``OMP_NUM_THREADS``).
    """
    options = LoadOptions(device, dtype, dims, max_length, threads)
    return _load(name, adapter, cache_dir or Settings().cache_dir, options)


def _load(name: str, adapter: str | None, cache: Path, options: LoadOptions) -> Encoder:
    pooled, two, tokens = name.partition(TOKENS_FROM)
    if two:
        first = _load(pooled, adapter, cache, options)
        return TwoEncoders(first, _load(tokens, None, cache, replace(options, dims=None, max_length=None)))
    parsed = parse_name(with_adapter(name, adapter))
    model, named_adapter = parsed.model, parsed.adapter
    folder = _trained(name, model, named_adapter)
    if folder is not None:
        own = parsed.suffix
        card = trained.ModelCard.read(folder)
        under = f"{model}{own}" if named_adapter else on_backend(card.base.name, own)
        return trained.load_trained(
            folder, card, lambda base: _load(base, None, cache, options), under, FileHashes(cache)
        )
    options = replace(options, dtype=parsed.dtype or options.dtype, runtime=parsed.runtime or options.runtime)
    backend = parsed.backend or ("torch" if named_adapter else _default_backend(model))
    if backend != "torch" and named_adapter:
        raise ConfigurationError(f"encoder [{name}]: only the torch backend applies adapters, take @torch")
    files = _files(model, backend, cache)
    late = files.kind is ModelKind.LATE_INTERACTION
    if late and named_adapter:
        raise ConfigurationError(
            f"encoder [{name}]: late-interaction models take no adapters here: leave out [{named_adapter}]"
        )
    if late and backend == "vllm":
        raise ConfigurationError(
            f"encoder [{name}] is a late-interaction model, which is not served behind vLLM (its query expansion and "
            "skipped tokens cannot be requested from it): take @torch or @onnx"
        )
    if backend == "vllm":
        from es_ttc.encoders.vllm import load_served

        return load_served(files, Settings(), options)
    if backend == "onnx":
        if options.dtype != "auto" or options.device not in ("auto", "cpu"):
            raise ConfigurationError(
                f"encoder [{name}] is an ONNX model, which runs on the CPU: leave out dtype and device, or take @torch"
            )
        if options.runtime == "openvino" and importlib.util.find_spec("openvino") is None:
            raise missing_package("openvino", "es-ttc[onnx]", ", which has it for x86-64 on Linux")
        if late:
            from es_ttc.encoders.onnx_late import load_late_onnx

            return load_late_onnx(files, options)
        from es_ttc.encoders.onnx import load_onnx

        return load_onnx(files, options)
    if late:
        from es_ttc.encoders.multi_vector import load_multi_vector

        return load_multi_vector(files, options)
    return _on_torch(files, options, named_adapter, cache)


def _on_torch(files: ModelFiles, options: LoadOptions, adapter: str | None, cache: Path) -> "TextEncoder":
    from es_ttc.encoders.sentence_transformers import load_torch

    def load_adapted(name: str) -> "TextEncoder | None":
        return _on_torch(files, options, name, cache) if name in adapters.shipped(files.folder) else None

    if adapter is not None and importlib.util.find_spec("peft") is None:
        raise missing_package("peft", "es-ttc[adapters]")
    found = None if adapter is None else adapters.find_adapter(files.folder, adapter, FileHashes(cache))
    return load_torch(files, options, found, load_adapted)


def _trained(name: str, model: str, adapter: str | None) -> Path | None:
    """Return the folder that `es-ttc train` wrote and a name contains: as the encoder itself, or as its adapter."""
    own = Path(model).expanduser()
    if adapter is None:
        return own if trained.is_trained(own) else None
    if trained.is_trained(own):
        raise ConfigurationError(
            f"encoder [{name}]: [{model}] is trained on an encoder of its own: leave out [{adapter}]"
        )
    folder = Path(adapter).expanduser()
    return folder if trained.is_trained(folder) else None


def require_known(name: str) -> None:
    """Raise an error for an encoder that certainly cannot be loaded here, before anything is loaded or downloaded."""
    for part in name.split(TOKENS_FROM):
        model = parse_name(part).model
        elsewhere = _described(model) is None and not Path(model).expanduser().is_dir()
        if elsewhere and importlib.util.find_spec("huggingface_hub") is not None:
            hub.require_on_hub(model, SHORT_NAMES)


def on_backend(name: str, suffix: str) -> str:
    """Return an encoder's name with another backend, ``@onnx``, or without one for ""."""
    pooled, two, tokens = name.partition(TOKENS_FROM)
    parsed = parse_name(pooled)
    return f"{parsed.model}{suffix}{f'+{parsed.adapter}' if parsed.adapter else ''}{two}{tokens}"


def with_adapter(name: str, adapter: str | None) -> str:
    """Return an encoder's name with an adapter; the name itself if there is none."""
    if adapter is None:
        return name
    pooled, two, tokens = name.partition(TOKENS_FROM)
    if parse_name(pooled).adapter:
        raise ConfigurationError(f"encoder [{name}] names an adapter already: leave out adapter [{adapter}]")
    return f"{pooled}+{adapter}{two}{tokens}"


def shipped_adapters(name: str, *, cache_dir: Path | None = None) -> list[str]:
    """Return the names of the adapters in an encoder's own folder; none for ONNX models."""
    parsed = parse_name(name.partition(TOKENS_FROM)[0])
    if (parsed.backend or _default_backend(parsed.model)) != "torch":
        return []
    return adapters.shipped(_files(parsed.model, "torch", cache_dir or Settings().cache_dir).folder)


def model_folder(name: str, *, cache_dir: Path | None = None) -> Path:
    """Return the folder of an encoder's model for torch, for fine-tuning."""
    if TOKENS_FROM in name:
        raise ConfigurationError(f"encoder [{name}] is two encoders: name the one that is to be trained")
    parsed = parse_name(name)
    if parsed.adapter is not None or trained.is_trained(Path(parsed.model).expanduser()):
        raise ConfigurationError(f"encoder [{name}] is no model by itself: name one without an adapter")
    files = _files(parsed.model, "torch", cache_dir or Settings().cache_dir)
    if files.kind is ModelKind.LATE_INTERACTION:
        raise ConfigurationError(
            f"encoder [{name}] is a late-interaction model, and what is fine-tuned here is a dense encoder: name one"
        )
    return files.folder


class ParsedName(NamedTuple):
    """The parts of an encoder's name; None for omitted ones."""

    model: str
    backend: Backend | None = None
    dtype: Dtype | None = None
    adapter: str | None = None
    runtime: Runtime | None = None

    @property
    def suffix(self) -> str:
        """The backend with its arithmetic or runtime, as it stands in the name; "" for none."""
        detail = self.dtype or self.runtime
        return f"@{self.backend}{f':{detail}' if detail else ''}" if self.backend else ""


def parse_name(name: str) -> ParsedName:
    """Return the parts of an encoder's name: ``model[@backend[:arithmetic or runtime]][+adapter]``."""
    whole = _without_adapter(name)
    model, plus, adapter = name.rpartition("+")
    if not (plus and model and adapter) or Path(whole.model).is_dir():
        return whole
    return _without_adapter(model)._replace(adapter=adapter)


def _without_adapter(name: str) -> ParsedName:
    match = _SUFFIX.fullmatch(name)
    if not name or match is None or Path(name).is_dir():
        return ParsedName(name)
    backend, detail = match["backend"], match["detail"]
    if backend not in get_args(Backend):
        raise ConfigurationError(f"encoder [{name}] names an unknown backend [{backend}]: take @torch, @onnx or @vllm")
    kind, known = ("runtime", get_args(Runtime)) if backend == "onnx" else ("arithmetic", get_args(Dtype))
    if detail is not None and detail not in known:
        raise ConfigurationError(f"encoder [{name}] names an unknown {kind} [{detail}]: take one of {', '.join(known)}")
    if backend == "onnx":
        return ParsedName(match["model"], "onnx", runtime=detail)  # type: ignore[arg-type]
    return ParsedName(match["model"], backend, detail)  # type: ignore[arg-type]


def _default_backend(model: str) -> Backend:
    """Return the backend of a name that names none: the same on every machine, whatever is installed there."""
    encoder = named(model)
    if encoder is not None:
        return encoder.default_backend
    folder = Path(model).expanduser()
    if folder.is_dir() and not any((*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin"))):
        return "onnx"
    return "torch"


def _described(model: str) -> ModelDescription | None:
    """Return the description of a named model, None for others; raise an error for a short name that is misspelt."""
    description = named(model)
    near = None if description or "/" in model or Path(model).expanduser().is_dir() else nearest(model, SHORT_NAMES)
    if near is not None:
        raise ConfigurationError(
            f"encoder [{model}] is no short name and no folder: did you mean [{near}]? (sentence-transformers/{model} "
            "names a model of the hub)"
        )
    return description


def _files(model: str, backend: Backend, cache_dir: Path) -> ModelFiles:
    encoder = _described(model)
    if encoder is not None and backend not in encoder.extras:
        present = " and ".join(f"@{each}" for each in encoder.extras)
        raise ConfigurationError(f"encoder [{model}@{backend}]: {encoder.short} has files for {present} only")
    for module in _NEEDED[backend]:
        if importlib.util.find_spec(module) is None:
            extra = encoder.extras[backend] if encoder is not None else "onnx" if backend == "vllm" else backend
            has_onnx = encoder is None or "onnx" in encoder.extras
            other = f", or take {model}@onnx if it has an ONNX model" if backend == "torch" and has_onnx else ""
            raise missing_package(module.replace("_", "-"), f"es-ttc[{extra}]", other)
    hashes = FileHashes(cache_dir)
    if encoder is not None:
        return _described_files(encoder, backend, hashes, cache_dir)
    folder = Path(model).expanduser()
    if folder.is_dir():
        public = folder.resolve().name
    else:
        folder, public = hub.snapshot(model, backend, SHORT_NAMES), model.rpartition("/")[2]
    if (folder / ADAPTER_CONFIG).is_file():
        raise ConfigurationError(f"encoder [{model}] is an adapter: name its model and it, as in minilm+{model}")
    kind = require_served(model, folder)
    model_revision = revision(folder, hashes, projected=kind is ModelKind.LATE_INTERACTION)
    onnx = _onnx_file(folder) if backend == "onnx" else None
    arithmetic = f"{onnx.name} {hashes.sha256(onnx)[:8]}" if onnx else ""
    return ModelFiles(public, model_revision, folder, onnx, arithmetic, kind)


def _described_files(model: ModelDescription, backend: Backend, hashes: FileHashes, cache_dir: Path) -> ModelFiles:
    match model.short:
        case "minilm":
            return packages.minilm_for_torch(hashes) if backend == "torch" else packages.minilm(hashes)
        case "mpnet":
            return packages.mpnet(hashes, cache_dir)
        case "colbert-small":
            return packages.colbert_small(hashes, cache_dir)
        case _:
            return fetched.model_files(model, hashes, cache_dir)


def _onnx_file(folder: Path) -> Path:
    for candidate in (folder / "model.onnx", folder / "onnx" / "model.onnx"):
        if candidate.is_file():
            return candidate
    raise ConfigurationError(f"model folder [{folder}] has no model.onnx and no onnx/model.onnx: take @torch")
