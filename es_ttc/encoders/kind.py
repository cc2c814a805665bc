"""Find out from a folder's files which kind of model it holds, before anything of it is loaded.

Libraries convert kinds into each other without a word: `SentenceTransformer(folder)` makes a late-interaction model a
backbone with mean pooling, and its projection is lost. So the kind is found here, for every backend, and a kind that is
not served is refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from es_ttc.common import configuration_files
from es_ttc.errors import ConfigurationError

LIBRARY_CONFIG = "config_sentence_transformers.json"
MODULES_FILE = "modules.json"
STANFORD_METADATA = "artifact.metadata"
STANFORD_ARCHITECTURE = "HF_ColBERT"
PYLATE_MODEL_TYPE = "ColBERT"


class ModelKind(StrEnum):
    """What a model makes of a text."""

    DENSE = "dense encoder"
    LATE_INTERACTION = "late-interaction model"
    SPARSE = "sparse encoder"
    CROSS_ENCODER = "cross-encoder"
    STATIC = "static embedding model"
    NO_RETRIEVAL = "no retrieval model"


SERVED_KINDS = frozenset({ModelKind.DENSE, ModelKind.LATE_INTERACTION})

_MODEL_TYPES: Mapping[str, ModelKind] = {
    "MultiVectorEncoder": ModelKind.LATE_INTERACTION,
    PYLATE_MODEL_TYPE: ModelKind.LATE_INTERACTION,
    "SparseEncoder": ModelKind.SPARSE,
    "CrossEncoder": ModelKind.CROSS_ENCODER,
}
"""By ``model_type`` of :data:`LIBRARY_CONFIG`; absent in folders of older releases."""
_PACKAGES: Mapping[str, ModelKind] = {
    "pylate.": ModelKind.LATE_INTERACTION,
    "sentence_transformers.multi_vector_encoder.": ModelKind.LATE_INTERACTION,
    "sentence_transformers.sparse_encoder.": ModelKind.SPARSE,
    "sentence_transformers.cross_encoder.": ModelKind.CROSS_ENCODER,
}
"""By the package of a module's class; a module of any other package may be a dense encoder's."""
_STATIC_MODULES = frozenset({"StaticEmbedding", "WordEmbeddings", "BoW"})

_INSTEAD: Mapping[ModelKind, str] = {
    ModelKind.SPARSE: "its weights of words belong in the engine's own field (sparse_vector, rank_features); take a "
    "dense encoder or a late-interaction model here",
    ModelKind.CROSS_ENCODER: "it scores a query and a text together and has no vectors; name it as a reranker (kind "
    "[cross_encoder]), and take a dense encoder or a late-interaction model here",
    ModelKind.STATIC: "each of its words has one vector in every text, so token vectors say nothing of the text; take "
    "a dense encoder or a late-interaction model",
    ModelKind.NO_RETRIEVAL: "nothing in it says how a text becomes a vector; take a folder that sentence-transformers "
    "or PyLate saved, or add the modules.json of its pooling if it is a dense encoder",
}


@dataclass(frozen=True, slots=True)
class FoundKind:
    """The kind of a model, and where it was found."""

    kind: ModelKind
    evidence: str


def kind_of(folder: Path) -> FoundKind:
    """Return the kind of the model in a folder."""
    stated = read_json_object(folder / LIBRARY_CONFIG).get("model_type")
    if isinstance(stated, str) and stated in _MODEL_TYPES:
        return FoundKind(_MODEL_TYPES[stated], f"model_type [{stated}] in {LIBRARY_CONFIG}")
    if (folder / STANFORD_METADATA).is_file():
        return FoundKind(ModelKind.LATE_INTERACTION, STANFORD_METADATA)
    config = read_json_object(folder / "config.json")
    named = config.get("architectures")
    architectures = [str(name) for name in named] if isinstance(named, list) else []
    if STANFORD_ARCHITECTURE in architectures:
        return FoundKind(ModelKind.LATE_INTERACTION, f"architecture [{STANFORD_ARCHITECTURE}] in config.json")
    if (folder / MODULES_FILE).is_file():
        return _by_modules([*module_classes(folder), *_routed(folder)])
    return _by_architecture(architectures, config)


def require_served(name: str, folder: Path) -> ModelKind:
    """Return the kind of the model in a folder."""
    found = kind_of(folder)
    if found.kind in SERVED_KINDS:
        return found.kind
    article = "" if found.kind is ModelKind.NO_RETRIEVAL else "a "
    raise ConfigurationError(
        f"encoder [{name}] is {article}{found.kind} ({found.evidence}), which is not served as an encoder: "
        f"{_INSTEAD[found.kind]}"
    )


def module_classes(folder: Path) -> list[str]:
    """Return the classes of the modules in a folder's :data:`MODULES_FILE`, with their packages."""
    return [str(module["type"]) for module in module_list(folder)]


def module_list(folder: Path) -> list[dict[str, Any]]:
    """Return the modules in a folder's :data:`MODULES_FILE`; none without the file."""
    modules = read_model_file(folder / MODULES_FILE, default=[])
    whole = isinstance(modules, list) and all(
        isinstance(module, dict) and isinstance(module.get("type"), str) and isinstance(module.get("path"), str)
        for module in modules
    )
    if not whole:
        raise ConfigurationError(
            f"configuration file [{folder / MODULES_FILE}] is no list of modules with type and path"
        )
    found: list[dict[str, Any]] = modules
    return found


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a configuration file; {} if there is no such file."""
    found = read_model_file(path)
    if not isinstance(found, dict):
        raise ConfigurationError(f"configuration file [{path}] is no JSON object")
    return found


def _routed(folder: Path) -> list[str]:
    """Return the classes of the modules that a router chooses from."""
    types = read_json_object(folder / "router_config.json").get("types")
    return [str(value) for value in types.values()] if isinstance(types, dict) else []


def _by_modules(classes: Iterable[str]) -> FoundKind:
    for reference in classes:
        kind = next((kind for package, kind in _PACKAGES.items() if reference.startswith(package)), None)
        if reference.rpartition(".")[2] in _STATIC_MODULES:
            kind = kind or ModelKind.STATIC
        if kind is not None:
            return FoundKind(kind, f"module [{reference}] in {MODULES_FILE}")
    return FoundKind(ModelKind.DENSE, MODULES_FILE)


def _by_architecture(architectures: list[str], config: Mapping[str, Any]) -> FoundKind:
    """Return the kind of a model without :data:`MODULES_FILE`, by transformers' configuration."""
    shown = f"no {MODULES_FILE}, and architectures {architectures} in config.json"
    if any(name.endswith("ForRetrieval") for name in architectures):
        return FoundKind(ModelKind.LATE_INTERACTION, shown)
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        return FoundKind(ModelKind.CROSS_ENCODER, shown)
    if config.get("model_type") == "model2vec" or "StaticModel" in architectures:
        return FoundKind(ModelKind.STATIC, shown)
    return FoundKind(ModelKind.NO_RETRIEVAL, shown if config else f"no {MODULES_FILE} and no config.json")


_DEFAULT_MAX_LENGTH = 512
_LEGACY_POOLING: Mapping[str, str] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    """How tokens become the pooled vector: sentence-transformers' modes, with or without the prompt's tokens."""

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True


def pooling_of(folder: Path) -> PoolingConfig:
    """Return the pooling in a model's folder; the mean if it says nothing."""
    modules = read_model_file(folder / "modules.json", default=[])
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    path = next((module["path"] for module, kind in zip(modules, kinds, strict=True) if kind == "Pooling"), "1_Pooling")
    config = read_model_file(folder / path / "config.json")
    mode = config.get("pooling_mode") or [mode for key, mode in _LEGACY_POOLING.items() if config.get(key)] or "mean"
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    return PoolingConfig(modes, bool(config.get("include_prompt", True)))


def max_length_of(folder: Path) -> int:
    """Return the maximum number of tokens of one input of a model."""
    stated = (
        read_model_file(folder / "sentence_bert_config.json").get("max_seq_length"),
        read_model_file(folder / "tokenizer_config.json").get("model_max_length"),
        read_model_file(folder / "config.json").get("max_position_embeddings"),
    )
    # Tokenizers without a limit contain a huge number.
    return next((int(length) for length in stated if length and length < 1_000_000), _DEFAULT_MAX_LENGTH)


def read_model_file(path: Path, default: Any = None) -> Any:
    """Return a configuration file's content; the default, or {}, if there is no such file."""
    if not path.is_file():
        return {} if default is None else default
    return configuration_files.read_json_file(path)
