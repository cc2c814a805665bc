"""Options of all backends, and the identity that follows from them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from es_ttc.encoders.base import EncoderIdentity, Role
from es_ttc.encoders.kind import pooling_of
from es_ttc.encoders.packages import ModelFiles
from es_ttc.errors import ConfigurationError

Dtype = Literal["auto", "float32", "bfloat16"]
Runtime = Literal["auto", "onnxruntime", "openvino"]  # of an ONNX file; auto: the faster one on this processor


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded; see :func:`es_ttc.encoders.load_encoder`."""

    device: str = "auto"
    dtype: Dtype = "auto"
    dims: int | None = None
    max_length: int | None = None
    threads: int | None = None
    runtime: Runtime = "auto"


def identity_of(
    files: ModelFiles,
    options: LoadOptions,
    *,
    own_dims: int,
    own_max_length: int,
    prompts: Mapping[Role, str],
    usual_dims: int | None = None,
    adapter: str = "",
    late: str = "",
) -> EncoderIdentity:
    """Return the identity of a model with some options; its configuration may keep fewer components than it has."""
    dims = usual_dims if options.dims is None else options.dims
    max_length = options.max_length
    for option, requested, own in (("dims", dims, own_dims), ("max_length", max_length, own_max_length)):
        if requested is not None and not 1 <= requested <= own:
            raise ConfigurationError(f"{option} [{requested}] must be from 1 to {own} for encoder [{files.model}]")
    return EncoderIdentity(
        model=files.model,
        revision=files.revision,
        dims=dims or own_dims,
        max_length=max_length or own_max_length,
        prompts=_prompts_hash(prompts),
        adapter=adapter,
        late=late,
        pooling="mean" if late else "+".join(pooling_of(files.folder).modes),
    )


def _prompts_hash(prompts: Mapping[Role, str]) -> str:
    if not any(prompts.values()):
        return ""
    return hashlib.sha256(json.dumps([prompts["query"], prompts["document"]]).encode()).hexdigest()[:8]
