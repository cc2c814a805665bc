"""Load the encoder of an index, from a name and the identity stored with the index."""

from dataclasses import replace
from pathlib import Path

from es_ttc.encoders import Encoder, EncoderIdentity, load_encoder
from es_ttc.encoders.base import fix_for, loadable_name, name_in, or_folder
from es_ttc.encoders.registry import shipped_adapters
from es_ttc.errors import EncoderMismatch
from es_ttc.index.mappings.spec import IndexSpec


def load_encoder_for(
    identity: EncoderIdentity, name: str | None, *, cache_dir: Path | None = None, threads: int | None = None
) -> Encoder:
    """Load an encoder by name, that of its own identity if None, with the dimensions, length and adapter of an index.

    Only an adapter that the model ships is added. The name may mean another model: the caller compares identities.
    """
    name = loadable_name(identity.key) if name is None else name
    encoder = load_encoder(name, cache_dir=cache_dir, threads=threads)
    own = encoder.identity
    adapter = None if own.adapter else identity.adapter_name or None
    like = replace(own, dims=identity.dims, max_length=identity.max_length)
    if adapter is not None:
        if adapter not in shipped_adapters(name, cache_dir=cache_dir):
            return encoder
        like = replace(like, adapter=identity.adapter)
    if own == identity or like != identity:
        return encoder
    return load_encoder(
        name,
        adapter=adapter,
        cache_dir=cache_dir,
        dims=identity.dims,
        max_length=identity.max_length,
        threads=threads,
    )


def check_encoder(name: str, spec: IndexSpec, encoder: Encoder) -> None:
    """Refuse to search an index with another encoder than its own."""
    if encoder.identity.key != spec.encoder.key:
        raise EncoderMismatch(
            f"index [{name}] was encoded by [{spec.encoder.key}], and the encoder here is [{encoder.identity.key}]: "
            + fix_for(
                spec.encoder.key,
                [encoder.identity.key],
                f"set ES_TTC_ENCODER to {name_in(spec.encoder.key)}{or_folder(spec.encoder.key)}, and "
                "give no other --encoder",
            )
        )
