"""Merge LoRA adapters into a model's weights, with peft: encoding is then as fast as without an adapter."""

from pathlib import Path
from typing import Any

from peft import LoraModel, PeftConfig, set_peft_model_state_dict
from peft.utils.peft_types import PeftType
from safetensors.torch import load_file

from es_ttc.encoders.adapters import WEIGHTS
from es_ttc.errors import ConfigurationError

_SLOT = "adapter"
_SAVED_BELOW = "base_model."  # begins each weight's name in a file, for peft's wrapper in training


def merge(model: Any, folder: Path) -> None:
    """Add the products B A of an adapter's folder to the weights of a transformers model in float32, in place."""
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigurationError(f"adapter folder [{folder}]: its configuration cannot be read: {error}") from error
    if config.peft_type != PeftType.LORA:
        raise ConfigurationError(f"adapter folder [{folder}] is of kind [{config.peft_type}]: only LoRA can be merged")
    config.inference_mode = True
    try:
        weights = {key.removeprefix(_SAVED_BELOW): rows for key, rows in load_file(folder / WEIGHTS).items()}
        adapted = LoraModel(model, config, _SLOT)
        found: Any = set_peft_model_state_dict(adapted, weights, adapter_name=_SLOT)
        _check(folder, found.unexpected_keys, [key for key in found.missing_keys if f".{_SLOT}" in key])
        adapted.merge_and_unload(safe_merge=True)
    except ConfigurationError:
        raise
    except Exception as error:  # the library may raise any exception for an adapter's files
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"adapter folder [{folder}] does not fit the encoder: {reason}") from error


def _check(folder: Path, unexpected: list[str], missing: list[str]) -> None:
    for keys, what in ((unexpected, "has weights that the encoder has no place for"), (missing, "lacks weights")):
        if keys:
            raise ConfigurationError(f"adapter folder [{folder}] {what}, {keys[0]} the first of {len(keys)}")
