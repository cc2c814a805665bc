"""What a late-interaction model's files say of it, for backends that do not use the model's own library.

The three forms are sentence-transformers' own (every module has its configuration), PyLate's (all of it stands in
`config_sentence_transformers.json`; mask and normalisation are implied) and Stanford's (`artifact.metadata`, and the
projection among the weights). Names and defaults are those of `sentence_transformers.MultiVectorEncoder`, which torch
uses: both ways give the same settings, so the same identity.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from tokenizers import AddedToken, Tokenizer

from es_ttc.encoders.base import Role
from es_ttc.encoders.kind import (
    LIBRARY_CONFIG,
    MODULES_FILE,
    PYLATE_MODEL_TYPE,
    STANFORD_METADATA,
    max_length_of,
    module_list,
    read_json_object,
)
from es_ttc.encoders.late import LateInteraction, MaskExpansion, described, skipped_ids
from es_ttc.encoders.windows import role_prompts
from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32

_EXPANDED_LENGTH = 32
_WEIGHTS = "model.safetensors"
_PYLATE_KEYS = ("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens", "skiplist_words")
_PREFIXES: Mapping[str, Role] = {"query_prefix": "query", "document_prefix": "document"}


@dataclass(frozen=True, slots=True)
class Projection:
    """One linear layer after the transformer, with the name of its activation function's class."""

    matrix: Float32
    bias: Float32 | None
    function: str
    residual: bool

    @property
    def linear(self) -> bool:
        """Whether it is a matrix product, and a sum, and nothing else."""
        return self.function == "Identity" and not self.residual

    def __call__(self, rows: Float32) -> Float32:
        """Return rows projected, ``(n, outer)``."""
        projected: Float32 = rows @ self.matrix.T
        return projected if self.bias is None else projected + self.bias


@dataclass(frozen=True, slots=True)
class LateFiles:
    """A late-interaction model as its files describe it."""

    late: LateInteraction
    tokenizer: Tokenizer
    projections: list[Projection]


@dataclass(slots=True)
class _Stated:
    """What a form states, in one shape."""

    prompts: dict[str, str | None]
    prefixes: list[str]
    query_length: int | None
    document_length: int | None
    expansion: Mapping[str, Any] | None
    skiplist: list[str]
    skiplist_tasks: list[str]
    kept_only: list[int] | None
    default_prompt: str | None


def read_late(folder: Path) -> LateFiles:
    """Return what the files in a folder say."""
    try:
        return _read(folder)
    except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(
            f"late-interaction model [{folder}] cannot be read without its library ({type(error).__name__}: {reason}): "
            "take @torch"
        ) from error


def _read(folder: Path) -> LateFiles:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stated = _by_modules(folder) if (folder / MODULES_FILE).is_file() else _stanford(folder)
    _register(tokenizer, stated.prefixes)
    projections = _projections(folder)
    special = _special_tokens(folder)
    late = LateInteraction.of(
        stated.query_length,
        stated.document_length,
        max_length_of(folder),
        role_prompts(stated.prompts, stated.default_prompt),
        _expansion(stated.expansion, tokenizer, special, folder),
        skipped_ids(stated.skiplist, tokenizer.token_to_id, special.get("unk_token")),
        stated.skiplist_tasks,
        stated.kept_only,
        [
            described(layer.matrix.shape[1], layer.matrix.shape[0], layer.function, residual=layer.residual)
            for layer in projections
        ],
        positions=read_json_object(folder / "config.json").get("max_position_embeddings"),
        source=str(folder),
    )
    return LateFiles(late, tokenizer, projections)


def _by_modules(folder: Path) -> _Stated:
    """Return what sentence-transformers' own form states, and PyLate's."""
    paths = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in module_list(folder)}
    unknown = sorted(set(paths) - {"Transformer", "Dense", "MultiVectorMask", "Normalize"})
    library = read_json_object(folder / LIBRARY_CONFIG)
    pylate = library.get("model_type") == PYLATE_MODEL_TYPE
    if unknown or "Transformer" not in paths or ("Normalize" not in paths and not pylate):
        raise ValueError(f"its modules are {sorted(paths)}")
    if "Normalize" in paths and _config(folder, paths["Normalize"]).get("module_input_name") != "token_embeddings":
        raise ValueError("its Normalize does not read token vectors")
    transformer = read_json_object(folder / paths["Transformer"] / "sentence_bert_config.json")
    knobs = {**_pylate_knobs(library), **transformer}
    mask = _config(folder, paths["MultiVectorMask"]) if "MultiVectorMask" in paths else {}
    if pylate:
        words = library.get("skiplist_words")
        mask = {"skiplist_words": list(string.punctuation) if words is None else words}
    prompts: dict[str, str | None] = {"query": None, "document": None, **(library.get("prompts") or {})}
    prefixes = []
    for key, role in _PREFIXES.items():
        if key in library:
            prefix = library[key] or ""
            prefixes.append(prefix)
            prompts[role] = prefix + (prompts.get(role) or "").removeprefix(prefix)
    tasks = mask.get("skiplist_tasks") or ["document"]
    return _Stated(
        prompts,
        prefixes,
        knobs.get("query_length"),
        knobs.get("document_length"),
        knobs.get("query_expansion"),
        list(mask.get("skiplist_words") or []),
        [tasks] if isinstance(tasks, str) else list(tasks),
        mask.get("keep_only_token_ids"),
        library.get("default_prompt_name"),
    )


def _pylate_knobs(library: Mapping[str, Any]) -> dict[str, Any]:
    """Return lengths and expansion in PyLate's words as those of the transformer's configuration."""
    knobs = {key: library[key] for key in ("query_length", "document_length") if library.get(key) is not None}
    if "query_expansion" in library:
        return {**knobs, "query_expansion": library["query_expansion"]}
    if not (knobs or any(key in library for key in (*_PYLATE_KEYS, *_PREFIXES))):
        return knobs
    if library.get("do_query_expansion") is False:
        return {**knobs, "query_expansion": None}
    attend = library.get("attend_to_expansion_tokens", library.get("attend_to_mask_tokens"))
    length = knobs.pop("query_length", None) or _EXPANDED_LENGTH
    return {**knobs, "query_expansion": {"strategy": "fixed", "attend": bool(attend), "length": length}}


def _stanford(folder: Path) -> _Stated:
    metadata = read_json_object(folder / STANFORD_METADATA)
    query = (metadata.get("query_token_id") or "[unused0]") + " "
    document = (metadata.get("doc_token_id") or "[unused1]") + " "
    expansion = {
        "strategy": "fixed",
        "attend": bool(metadata.get("attend_to_mask_tokens")),
        "length": metadata.get("query_maxlen") or _EXPANDED_LENGTH,
    }
    return _Stated(
        {"query": query, "document": document},
        [query, document],
        None,
        metadata.get("doc_maxlen"),
        expansion,
        list(string.punctuation) if metadata.get("mask_punctuation", True) else [],
        ["document"],
        None,
        None,
    )


def _projections(folder: Path) -> list[Projection]:
    modules = module_list(folder)
    if not modules:
        with safe_open(folder / _WEIGHTS, "np") as weights:
            return [Projection(_float32(weights.get_tensor("linear.weight")), None, "Identity", residual=False)]
    found = []
    for path in (str(module["path"]) for module in modules if str(module["type"]).endswith(".Dense")):
        config = _config(folder, path)
        with safe_open(folder / path / _WEIGHTS, "np") as weights:
            bias = _float32(weights.get_tensor("linear.bias")) if config.get("bias", True) else None
            matrix = _float32(weights.get_tensor("linear.weight"))
        function = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
        found.append(Projection(matrix, bias, function, bool(config.get("use_residual"))))
    return found


def _float32(values: Any) -> Float32:
    return np.ascontiguousarray(values, dtype=np.float32)


def _config(folder: Path, path: str) -> dict[str, Any]:
    return read_json_object(folder / path / "config.json")


def _register(tokenizer: Tokenizer, prefixes: list[str]) -> None:
    """Make markers that are tokens be read as such, as the library does; others stay text."""
    for value in prefixes:
        for marker in (value, *value.split(None, 1)[:1]):
            if marker.strip() and tokenizer.token_to_id(marker) is not None:
                if tokenizer.encode(marker, add_special_tokens=False).tokens != [marker]:
                    tokenizer.add_special_tokens([AddedToken(marker, normalized=False, special=True)])
                break


def _special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens by name."""
    stated = {
        **read_json_object(folder / "special_tokens_map.json"),
        **read_json_object(folder / "tokenizer_config.json"),
    }
    plain = {name: value.get("content") if isinstance(value, dict) else value for name, value in stated.items()}
    return {name: value for name, value in plain.items() if name.endswith("_token") and isinstance(value, str)}


def _expansion(
    stated: Mapping[str, Any] | None, tokenizer: Tokenizer, special: Mapping[str, str], folder: Path
) -> MaskExpansion | None:
    if stated is None:
        return None
    word = stated.get("token") or special.get("mask_token") or special.get("eos_token")
    token = None if word is None else tokenizer.token_to_id(word)
    if token is None:
        raise ConfigurationError(f"model [{folder}] expands queries and its tokenizer has no mask token to do it with")
    return MaskExpansion(stated["strategy"], stated["length"], token, bool(stated.get("attend", False)))
