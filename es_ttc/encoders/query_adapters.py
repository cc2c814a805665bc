"""Adapters of queries: what `es-ttc learn` wrote for some indices, whose documents keep their encoder's vectors."""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from es_ttc.encoders.base import Encoder, EncoderIdentity, Role
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.heads import Head
from es_ttc.encoders.trained import ModelCard, TrainedEncoder, heads_in, is_trained, trained_identity
from es_ttc.errors import ConfigurationError, EncoderMismatch

SETTING = "query_adapters"
in_trial: ContextVar[bool] = ContextVar("in_trial", default=False)  # whether adapters on trial are used now


@dataclass(frozen=True, slots=True)
class QueryAdapter:
    """One adapter: its folder, the encoder of the documents, and that encoder with the adapter."""

    folder: Path
    base: EncoderIdentity
    identity: EncoderIdentity
    heads: Mapping[Role, Head]

    @classmethod
    def read(cls, folder: Path, cache_dir: Path, name: str) -> Self:
        """Read a folder that `es-ttc learn` wrote; `name` is that of the setting."""
        if not is_trained(folder):
            raise ConfigurationError(f"[{name}] [{folder}] is no folder that `es-ttc learn` wrote")
        card = ModelCard.read(folder)
        if card.heads.get("document") or card.models:
            raise ConfigurationError(
                f"[{name}] [{folder}] changes documents' vectors too: attach the index with it (`es-ttc attach "
                "--adapter`), or learn one for queries (`es-ttc learn`)"
            )
        identity = trained_identity(folder, card, FileHashes(cache_dir))
        return cls(folder, card.base.encoder_identity, identity, heads_in(folder, card))

    def over(self, encoder: Encoder) -> TrainedEncoder:
        """Return the documents' encoder with the adapter."""
        return TrainedEncoder(encoder, self.heads, replace(self.identity, pooling=encoder.identity.pooling))


class QueryAdapters:
    """Adapters by index, alias or pattern with ``*``, the first match; if `on_trial`, only while :data:`in_trial`."""

    def __init__(self, adapters: Mapping[str, QueryAdapter], *, on_trial: bool = False) -> None:
        self._on_trial = on_trial
        self._adapters = [
            (re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL), adapter)
            for pattern, adapter in adapters.items()
        ]

    @classmethod
    def read(cls, folders: Mapping[str, Path], cache_dir: Path, *, on_trial: bool = False) -> Self:
        """Read the folders of the setting."""
        return cls(
            {
                pattern: QueryAdapter.read(folder.expanduser(), cache_dir, f"{SETTING}.{pattern}")
                for pattern, folder in folders.items()
            },
            on_trial=on_trial,
        )

    @classmethod
    def of_all(cls, base: EncoderIdentity, head: Head) -> Self:
        """Return an adapter that is in no folder yet, for every target."""
        heads: dict[Role, Head] = {"query": head, "document": Head()}
        return cls({"*": QueryAdapter(Path(), base, replace(base, adapter="learned"), heads)})

    def over(self, encoder: Encoder, target: str) -> Encoder:
        """Return the documents' encoder, with the target's adapter if all names in the request's path have the same."""
        adapter = self.of(target)
        if adapter is None or (self._on_trial and not in_trial.get()):
            return encoder
        own, key = encoder.identity.key, adapter.base.key
        if own != key:
            raise EncoderMismatch(
                f"the adapter [{adapter.folder}] of [{unquote(target)}] is for documents of [{key}], and these are of "
                f"[{own}]: learn it anew with `es-ttc learn {unquote(target)}`, or take it out of [{SETTING}]"
            )
        return adapter.over(encoder)

    def of(self, target: str) -> QueryAdapter | None:
        """Return the adapter of a target."""
        if not self._adapters:
            return None
        found = [self._named(name) for name in unquote(target).split(",")]
        return found[0] if all(one is found[0] for one in found) else None

    def _named(self, name: str) -> QueryAdapter | None:
        return next((adapter for pattern, adapter in self._adapters if pattern.fullmatch(name)), None)
