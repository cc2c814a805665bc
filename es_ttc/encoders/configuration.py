"""The configuration in a model's folder, for backends that do not use the model's own library."""

import json
from pathlib import Path
from typing import Any

from es_ttc.errors import ConfigurationError

_DEFAULT_MAX_LENGTH = 512


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
    """Return a configuration file's content; the default, or {}, if there is no such file.

    Raises:
        ConfigurationError: It is no JSON.
    """
    if not path.is_file():
        return {} if default is None else default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"configuration file [{path}] is not valid JSON: {error}") from error
