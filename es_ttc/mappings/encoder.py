"""The encoder of an index, from a name and the identity that the index keeps."""

from dataclasses import replace
from pathlib import Path

from es_ttc.encoders import Encoder, EncoderIdentity, load_encoder


def load_encoder_for(identity: EncoderIdentity, name: str, *, cache_dir: Path | None = None) -> Encoder:
    """Load an encoder by name, with the dimensions and length that an index was made with.

    Args:
        identity: What the index keeps.
        name: The encoder's name, as :func:`es_ttc.encoders.load_encoder` takes it.
        cache_dir: Where downloads are kept.

    Returns:
        The encoder; its identity is the index's, unless the name stands for another model, revision or prompts.

    Raises:
        ConfigurationError: The encoder cannot be loaded.
    """
    encoder = load_encoder(name, cache_dir=cache_dir)
    own = encoder.identity
    if own == identity or replace(own, dims=identity.dims, max_length=identity.max_length) != identity:
        return encoder
    return load_encoder(name, cache_dir=cache_dir, dims=identity.dims, max_length=identity.max_length)
