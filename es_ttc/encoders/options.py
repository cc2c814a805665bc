"""What every backend is told, and the identity that follows from it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Literal

from es_ttc.encoders.base import EncoderIdentity, Role
from es_ttc.encoders.packages import ModelFiles
from es_ttc.errors import ConfigurationError

Dtype = Literal["auto", "float32", "bfloat16"]


def identity_of(
    files: ModelFiles,
    *,
    own_dims: int,
    dims: int | None,
    own_max_length: int,
    max_length: int | None,
    prompts: Mapping[Role, str],
    adapter: str = "",
) -> EncoderIdentity:
    """Return the identity of a model with the options given.

    Args:
        files: The model.
        own_dims: Components of its vectors.
        dims: Components wanted; None for its own.
        own_max_length: Its own limit.
        max_length: The limit wanted; None for its own.
        prompts: Each role's prompt.
        adapter: The adapter's name and revision, or "".

    Raises:
        ConfigurationError: An option is out of range.
    """
    for option, wanted, own in (("dims", dims, own_dims), ("max_length", max_length, own_max_length)):
        if wanted is not None and not 1 <= wanted <= own:
            raise ConfigurationError(f"{option} [{wanted}] must be from 1 to {own} for encoder [{files.model}]")
    return EncoderIdentity(
        model=files.model,
        revision=files.revision,
        dims=dims or own_dims,
        max_length=max_length or own_max_length,
        prompts=_prompts_hash(prompts),
        adapter=adapter,
    )


def _prompts_hash(prompts: Mapping[Role, str]) -> str:
    if not any(prompts.values()):
        return ""
    return hashlib.sha256(json.dumps([prompts["query"], prompts["document"]]).encode()).hexdigest()[:8]
