"""Trained encoders: an encoder with a head for queries and one for documents, from a folder that `es-ttc train` wrote.

A folder contains ``card.json`` (its description and origin), ``heads.safetensors`` and, if the encoder itself was
fine-tuned, ``query/`` or ``document/`` with a sentence-transformers model. Only the latter needs torch.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file

from es_ttc.common.configuration_files import read_bytes
from es_ttc.common.validation import first_error
from es_ttc.encoders.base import Encoder, EncoderIdentity, Encodings, Role
from es_ttc.encoders.hashing import DIGITS, FileHashes, revision
from es_ttc.encoders.heads import Head, HeadKind
from es_ttc.errors import ConfigurationError

CARD = "card.json"
HEADS = "heads.safetensors"
FORMAT_VERSION = 1
ROLES: tuple[Role, ...] = ("query", "document")


class BaseEncoder(BaseModel):
    """The base encoder of the heads."""

    model_config = ConfigDict(frozen=True)

    name: str
    identity: dict[str, Any]

    @property
    def encoder_identity(self) -> EncoderIdentity:
        """The identity as an object."""
        return EncoderIdentity.from_dict(self.identity)


class ModelCard(BaseModel):
    """The fields of ``card.json`` that serving reads; the others are for readers."""

    model_config = ConfigDict(frozen=True)

    version: int
    kind: str
    name: str
    base: BaseEncoder
    heads: dict[Role, list[HeadKind]]
    models: list[Role] = Field(default_factory=list)
    params: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the card of a folder."""
        try:
            card = cls.model_validate_json(read_bytes(folder / CARD))
            card.base.encoder_identity  # noqa: B018 - its fields are checked here
        except (ValidationError, TypeError) as error:
            reason = first_error(error) if isinstance(error, ValidationError) else str(error)
            raise ConfigurationError(f"[{folder / CARD}] is no card of a trained encoder: {reason}") from error
        if card.version > FORMAT_VERSION:
            raise ConfigurationError(
                f"[{folder}] was trained by a newer es-ttc (layout {card.version}, this one reads up to "
                f"{FORMAT_VERSION}): upgrade es-ttc"
            )
        return card


class TrainedEncoder:
    """An encoder of which one head maps pooled and token vectors, so both stay in one space."""

    def __init__(
        self, base: Encoder | Mapping[Role, Encoder], heads: Mapping[Role, Head], identity: EncoderIdentity
    ) -> None:
        self.bases: Mapping[Role, Encoder] = base if isinstance(base, Mapping) else dict.fromkeys(ROLES, base)
        self.heads = heads
        self.identity = identity
        self.backend = self.bases["document"].backend

    @cached_property
    def distinguishes_roles(self) -> bool:
        """Whether base encoders or heads differ by role, or a base encoder distinguishes roles itself."""
        query, document = (self.bases[role] for role in ROLES)
        if query.identity.key != document.identity.key or document.distinguishes_roles:
            return True
        return not self.heads["query"].equals(self.heads["document"])

    @property
    def stop_words(self) -> frozenset[str]:
        """The stop words of the encoder under the heads."""
        return self.bases["document"].stop_words

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024
    ) -> Encodings:
        """Encode texts; see :meth:`es_ttc.encoders.base.Encoder.encode`."""
        found = self.bases[role].encode(texts, role=role, tokens=tokens, max_tokens=max_tokens)
        head = self.heads[role]
        return replace(found, pooled=head.alone(found.pooled), tokens=[head(rows) for rows in found.tokens])

    def adapted(self, adapter: str) -> Encoder | None:
        """Return the base encoder with another adapter in place of the heads."""
        return self.bases["document"].adapted(adapter)

    def shortened(self, max_length: int) -> "TrainedEncoder":
        """Return the same encoder for texts truncated to ``max_length`` tokens."""
        shorter = {role: base.shortened(max_length) for role, base in self.bases.items()}
        identity = replace(self.identity, max_length=shorter["document"].identity.max_length)
        return TrainedEncoder(shorter, self.heads, identity)

    def over(self, wrap: Callable[[Encoder], Encoder]) -> "TrainedEncoder":
        """Return the same encoder with its base encoders wrapped, for a cache, because heads are fast."""
        return TrainedEncoder({role: wrap(base) for role, base in self.bases.items()}, self.heads, self.identity)


def is_trained(folder: Path) -> bool:
    """Return whether a folder contains a trained encoder."""
    return (folder / CARD).is_file() and (folder / HEADS).is_file()


def heads_in(folder: Path, card: ModelCard) -> dict[Role, Head]:
    """Return the heads of both roles."""
    try:
        arrays = load_file(folder / HEADS)
        heads = {role: Head.of(card.heads.get(role, []), arrays, role) for role in ROLES}
    except (OSError, SafetensorError, KeyError) as error:
        raise ConfigurationError(f"[{folder / HEADS}] does not fit its card: {error}") from error
    dims = card.base.encoder_identity.dims
    for head in heads.values():
        for layer in head.layers:
            if layer.dims != dims:
                raise ConfigurationError(
                    f"[{folder / HEADS}] has a layer of {layer.dims} dimensions for an encoder of {dims}"
                )
    return heads


def trained_identity(folder: Path, card: ModelCard, hashes: FileHashes) -> EncoderIdentity:
    """Return a trained encoder's identity: the base's, and name and content (weights, layers) of the trained part."""
    total = hashlib.sha256()
    layers = {role: card.heads.get(role, []) for role in ROLES}
    total.update(f"{card.base.encoder_identity.key}\n{layers}\n{hashes.sha256(folder / HEADS)}\n".encode())
    for role in sorted(card.models):
        total.update(f"{role} {revision(folder / role, hashes)}\n".encode())
    return replace(card.base.encoder_identity, adapter=f"{card.name}@{total.hexdigest()[:DIGITS]}")


def load_trained(
    folder: Path, card: ModelCard, load: Callable[[str], Encoder], name: str, hashes: FileHashes
) -> TrainedEncoder:
    """Load a trained encoder."""
    encoder = load(name)
    expected = card.base.encoder_identity
    found = encoder.identity
    if replace(found, max_length=expected.max_length) != expected or found.max_length > expected.max_length:
        raise ConfigurationError(
            f"[{folder}] was trained on the vectors of [{expected.key}], and [{name}] is [{found.key}]: name the right "
            f"one, as in NAME+{folder}"
        )
    bases: dict[Role, Encoder] = dict.fromkeys(ROLES, encoder)
    bases |= {role: load(f"{folder / role}@torch") for role in card.models}
    identity = replace(trained_identity(folder, card, hashes), max_length=found.max_length, pooling=found.pooling)
    return TrainedEncoder(bases, heads_in(folder, card), identity)
