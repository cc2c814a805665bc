"""The encoder of an index, from a name and the identity that the index keeps."""

from dataclasses import replace
from pathlib import Path

from es_ttc.encoders import Encoder, EncoderIdentity, load_encoder
from es_ttc.encoders.registry import shipped_adapters


def load_encoder_for(identity: EncoderIdentity, name: str, *, cache_dir: Path | None = None) -> Encoder:
    """Load an encoder by name, with the dimensions, the length and the adapter that an index was made with.

    An adapter is added only where the name has none and the model ships the one of the index: what an index says makes
    nothing else be read.

    Args:
        identity: What the index keeps.
        name: The encoder's name, as :func:`es_ttc.encoders.load_encoder` takes it.
        cache_dir: Where downloads are kept.

    Returns:
        The encoder; its identity is the index's, unless the name stands for another model, revision, prompts or
        adapter.

    Raises:
        ConfigurationError: The encoder cannot be loaded.
    """
    encoder = load_encoder(name, cache_dir=cache_dir)
    own = encoder.identity
    adapter = None if own.adapter else identity.adapter_name or None
    like = replace(own, dims=identity.dims, max_length=identity.max_length)
    if adapter is not None:
        if adapter not in shipped_adapters(name, cache_dir=cache_dir):
            return encoder
        like = replace(like, adapter=identity.adapter)
    if own == identity or like != identity:
        return encoder
    return load_encoder(name, adapter=adapter, cache_dir=cache_dir, dims=identity.dims, max_length=identity.max_length)
