"""The configuration in a model's folder, for backends that do not use the model's own library."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from es_ttc.errors import ConfigurationError

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
    """How a model's tokens become its pooled vector.

    Attributes:
        modes: Names by sentence-transformers: ``mean``, ``cls``, ``lasttoken``, ``max``, ...; more than one where
            several vectors follow each other.
        include_prompt: Whether leading special tokens and the prompt are pooled too.
    """

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True


def pooling_of(folder: Path) -> PoolingConfig:
    """Return the pooling in a model's folder; the mean if it says nothing."""
    modules = read_json(folder / "modules.json", default=[])
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    path = next((module["path"] for module, kind in zip(modules, kinds, strict=True) if kind == "Pooling"), "1_Pooling")
    config = read_json(folder / path / "config.json")
    mode = config.get("pooling_mode") or [mode for key, mode in _LEGACY_POOLING.items() if config.get(key)] or "mean"
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    return PoolingConfig(modes, bool(config.get("include_prompt", True)))


def max_length_of(folder: Path) -> int:
    """Return the maximum number of tokens of one input of a model."""
    stated = (
        read_json(folder / "sentence_bert_config.json").get("max_seq_length"),
        read_json(folder / "tokenizer_config.json").get("model_max_length"),
        read_json(folder / "config.json").get("max_position_embeddings"),
    )
    # Tokenizers without a limit contain a huge number.
    return next((int(length) for length in stated if length and length < 1_000_000), _DEFAULT_MAX_LENGTH)


def read_json(path: Path, default: Any = None) -> Any:
    """Return a configuration file's content; the default, or {}, if there is no such file."""
    if not path.is_file():
        return {} if default is None else default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"configuration file [{path}] is not valid JSON: {error}") from error
