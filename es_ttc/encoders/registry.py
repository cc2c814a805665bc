"""Encoders by name: which model, from where, on which backend."""

import importlib.util
import re
from pathlib import Path
from typing import Literal, get_args

from es_ttc.encoders import hub, packages
from es_ttc.encoders.base import Encoder
from es_ttc.encoders.hashing import FileHashes, revision
from es_ttc.encoders.options import Dtype
from es_ttc.encoders.packages import ModelFiles, missing_package
from es_ttc.errors import ConfigurationError
from es_ttc.settings import Settings

Backend = Literal["torch", "onnx"]
SHORT_NAMES = ("minilm", "mpnet")

_SUFFIX = re.compile(r"(?P<model>.+)@(?P<backend>[a-z]+)(:(?P<dtype>[a-z0-9]+))?", re.DOTALL)


def load_encoder(
    name: str,
    *,
    cache_dir: Path | None = None,
    device: str = "auto",
    dtype: Dtype = "auto",
    dims: int | None = None,
    max_length: int | None = None,
    threads: int | None = None,
) -> Encoder:
    """Load an encoder.

    Args:
        name: ``minilm``, ``mpnet``, a sentence-transformers model's name on the hub, or a folder; then, if wanted,
            ``@torch`` or ``@onnx`` for the backend, and ``@torch:float32`` or ``@torch:bfloat16`` for its arithmetic
            too. Without a backend torch is taken where it is installed and the model has weights for it.
        cache_dir: Where assembled models and file hashes are kept; ``ES_TTC_CACHE_DIR`` or the user's cache folder
            if None.
        device: ``auto`` (CUDA, then Apple's MPS, then the CPU) or a torch device; ONNX models run on the CPU.
        dtype: Arithmetic of the torch backend; ``auto`` takes bfloat16 where the processor multiplies it natively.
            The name's own wins.
        dims: Components kept of every vector, for models trained for it (Matryoshka); all if None.
        max_length: Tokens that the model reads at once, at most its own limit, which is taken if None.
        threads: Windows that the ONNX backend runs at the same time; one per processor if None. Torch has its own
            setting (``torch.set_num_threads``, ``OMP_NUM_THREADS``).

    Raises:
        ConfigurationError: The name, or an option, or what is installed does not do; the message says what would.
    """
    model, backend, named_dtype = parse_name(name)
    cache = cache_dir or Settings().cache_dir
    backend = backend or _default_backend(model)
    files = _files(model, backend, cache)
    if backend == "onnx":
        if (named_dtype or dtype) != "auto" or device not in ("auto", "cpu"):
            raise ConfigurationError(
                f"encoder [{name}] runs in the ONNX model's own arithmetic on the CPU: leave out dtype and device, or "
                f"take @torch"
            )
        from es_ttc.encoders.onnx import load_onnx

        return load_onnx(files, dims=dims, max_length=max_length, threads=threads)
    from es_ttc.encoders.sentence_transformers import load_torch

    return load_torch(files, device=device, dtype=named_dtype or dtype, dims=dims, max_length=max_length)


def parse_name(name: str) -> tuple[str, Backend | None, Dtype | None]:
    """Return model, backend and arithmetic of an encoder's name.

    Raises:
        ConfigurationError: An unknown backend or arithmetic.
    """
    match = _SUFFIX.fullmatch(name)
    if not name or match is None or Path(name).is_dir():
        return name, None, None
    backend, dtype = match["backend"], match["dtype"]
    if backend not in get_args(Backend):
        raise ConfigurationError(f"encoder [{name}] names an unknown backend [{backend}]: take @torch or @onnx")
    if dtype is not None and dtype not in get_args(Dtype):
        raise ConfigurationError(
            f"encoder [{name}] names an unknown arithmetic [{dtype}]: take one of {', '.join(get_args(Dtype))}"
        )
    return match["model"], backend, dtype  # type: ignore[return-value]


def _default_backend(model: str) -> Backend:
    if model == "mpnet" or (importlib.util.find_spec("torch") and importlib.util.find_spec("sentence_transformers")):
        folder = Path(model)
        only_onnx = folder.is_dir() and not any((*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")))
        return "onnx" if only_onnx else "torch"
    return "onnx"


def _files(model: str, backend: Backend, cache_dir: Path) -> ModelFiles:
    needed = ("sentence_transformers", "torch") if backend == "torch" else ("onnxruntime", "tokenizers")
    for module in needed:
        if importlib.util.find_spec(module) is None:
            extra = "mpnet" if model == "mpnet" else "minilm" if (model, backend) == ("minilm", "onnx") else backend
            raise missing_package(module.replace("_", "-"), f"es-ttc[{extra}]")
    hashes = FileHashes(cache_dir)
    if model == "minilm":
        return packages.minilm(hashes, onnx=backend == "onnx")
    if model == "mpnet":
        if backend == "onnx":
            raise ConfigurationError("encoder [mpnet@onnx]: no package carries all-mpnet-base-v2 as ONNX: take mpnet")
        return packages.mpnet(hashes, cache_dir)
    folder = Path(model).expanduser()
    if folder.is_dir():
        public = folder.resolve().name
    else:
        folder, public = hub.snapshot(model, backend), model.rpartition("/")[2]
    model_revision = revision(folder, hashes)
    onnx = _onnx_file(folder) if backend == "onnx" else None
    arithmetic = f"{onnx.name} {hashes.sha256(onnx)[:8]}" if onnx else ""
    return ModelFiles(public, model_revision, folder, onnx, arithmetic)


def _onnx_file(folder: Path) -> Path:
    for candidate in (folder / "model.onnx", folder / "onnx" / "model.onnx"):
        if candidate.is_file():
            return candidate
    raise ConfigurationError(f"model folder [{folder}] has no model.onnx and no onnx/model.onnx: take @torch")
