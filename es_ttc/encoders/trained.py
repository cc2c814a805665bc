"""Trained artefacts: an encoder with a head for queries and one for documents, from a folder that `es-ttc train` wrote.

A folder holds ``card.json`` (what it is and where it comes from), ``heads.safetensors`` and, where the encoder itself
was fine-tuned, ``query/`` or ``document/`` with a sentence-transformers model. No torch here but for the latter.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file

from es_ttc.encoders.base import Encoder, EncoderIdentity, Encodings, Role
from es_ttc.encoders.hashing import DIGITS, FileHashes, revision
from es_ttc.encoders.heads import Head, Kind
from es_ttc.errors import ConfigurationError

CARD = "card.json"
HEADS = "heads.safetensors"
VERSION = 1
ROLES: tuple[Role, ...] = ("query", "document")


class BaseEncoder(BaseModel):
    """The encoder under the heads.

    Attributes:
        name: What it is loaded by where nothing else is said: ``minilm``, a hub name, a folder.
        identity: What it must be.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    identity: dict[str, Any]

    @property
    def encoder_identity(self) -> EncoderIdentity:
        """The identity as an object."""
        return EncoderIdentity.from_dict(self.identity)


class ModelCard(BaseModel):
    """What serving reads of ``card.json``; the rest of it is for people.

    Attributes:
        version: Of the layout.
        kind: What trained it: nnn, colt, dense or head.
        name: Its public name.
        base: The encoder under it.
        heads: Kinds of each role's layers.
        models: Roles that have a fine-tuned model of their own.
        params: Parameters that go with it, by method.
    """

    model_config = ConfigDict(frozen=True)

    version: int
    kind: str
    name: str
    base: BaseEncoder
    heads: dict[Role, list[Kind]]
    models: list[Role] = Field(default_factory=list)
    params: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the card of a folder.

        Raises:
            ConfigurationError: It is damaged, or of a newer release.
        """
        try:
            card = cls.model_validate_json((folder / CARD).read_bytes())
            card.base.encoder_identity  # noqa: B018 - its fields are checked here
        except (OSError, ValidationError, TypeError) as error:
            reason = str(error)
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False)[0]
                reason = f"[{'.'.join(map(str, first['loc'])) or 'it'}]: {first['msg']}"
            raise ConfigurationError(f"[{folder / CARD}] is no card of a trained encoder: {reason}") from error
        if card.version > VERSION:
            raise ConfigurationError(
                f"[{folder}] was trained by a newer es-ttc (layout {card.version}, this one reads up to {VERSION}): "
                "upgrade es-ttc"
            )
        return card


class TrainedEncoder:
    """An encoder whose vectors go through a head; it is itself an :class:`~es_ttc.encoders.base.Encoder`.

    Token vectors go through the same head as pooled ones, so both stay of one space.

    Args:
        base: The encoder under it, or both roles' where they differ.
        heads: Each role's.
        identity: What it is now.
        backend: What people call it.
    """

    def __init__(
        self, base: Encoder | Mapping[Role, Encoder], heads: Mapping[Role, Head], identity: EncoderIdentity
    ) -> None:
        self.bases: Mapping[Role, Encoder] = base if isinstance(base, Mapping) else dict.fromkeys(ROLES, base)
        self.heads = heads
        self._identity = identity

    @property
    def identity(self) -> EncoderIdentity:
        """What the vectors depend on."""
        return self._identity

    @property
    def backend(self) -> str:
        """The backend of the encoder under it."""
        return self.bases["document"].backend

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024
    ) -> Encodings:
        """Encode texts; see :meth:`es_ttc.encoders.base.Encoder.encode`."""
        found = self.bases[role].encode(texts, role=role, tokens=tokens, max_tokens=max_tokens)
        head = self.heads[role]
        return replace(found, pooled=head.alone(found.pooled), tokens=[head(rows) for rows in found.tokens])

    def adapted(self, adapter: str) -> Encoder | None:
        """Return the encoder under it with another adapter in place of this one's heads."""
        return self.bases["document"].adapted(adapter)

    def shortened(self, max_length: int) -> "TrainedEncoder":
        """Return the same for texts cut at ``max_length`` tokens."""
        shorter = {role: base.shortened(max_length) for role, base in self.bases.items()}
        identity = replace(self._identity, max_length=shorter["document"].identity.max_length)
        return TrainedEncoder(shorter, self.heads, identity)

    def over(self, wrap: Callable[[Encoder], Encoder]) -> "TrainedEncoder":
        """Return the same with the encoders under it wrapped: a cache belongs there, for heads are quick."""
        return TrainedEncoder({role: wrap(base) for role, base in self.bases.items()}, self.heads, self._identity)


def is_trained(folder: Path) -> bool:
    """Whether a folder holds a trained artefact."""
    return (folder / CARD).is_file() and (folder / HEADS).is_file()


def heads_in(folder: Path, card: ModelCard) -> dict[Role, Head]:
    """Read both roles' heads.

    Raises:
        ConfigurationError: The weights are damaged, or do not fit the card.
    """
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


def identity_of(folder: Path, card: ModelCard, hashes: FileHashes) -> EncoderIdentity:
    """Return the identity of an artefact: the base's, and the name and content of what was trained.

    The content is what vectors depend on: weights and layers, not the figures on the card.
    """
    total = hashlib.sha256()
    layers = {role: card.heads.get(role, []) for role in ROLES}
    total.update(f"{card.base.encoder_identity.key}\n{layers}\n{hashes.sha256(folder / HEADS)}\n".encode())
    for role in sorted(card.models):
        total.update(f"{role} {revision(folder / role, hashes)}\n".encode())
    return replace(card.base.encoder_identity, adapter=f"{card.name}@{total.hexdigest()[:DIGITS]}")


def load_trained(
    folder: Path, card: ModelCard, load: Callable[[str], Encoder], name: str, hashes: FileHashes
) -> TrainedEncoder:
    """Load an artefact.

    Args:
        folder: Where it lies.
        card: Its card.
        load: Loads an encoder by name.
        name: Of the encoder under it.
        hashes: For the identity.

    Raises:
        ConfigurationError: It is damaged, or the encoder is not the one that it was trained on.
    """
    encoder = load(name)
    wanted = card.base.encoder_identity
    found = encoder.identity
    if replace(found, max_length=wanted.max_length) != wanted or found.max_length > wanted.max_length:
        raise ConfigurationError(
            f"[{folder}] was trained on the vectors of [{wanted.key}], and [{name}] is [{found.key}]: name the right "
            f"one, as in NAME+{folder}"
        )
    bases: dict[Role, Encoder] = dict.fromkeys(ROLES, encoder)
    bases |= {role: load(f"{folder / role}@torch") for role in card.models}
    identity = replace(identity_of(folder, card, hashes), max_length=found.max_length)
    return TrainedEncoder(bases, heads_in(folder, card), identity)
