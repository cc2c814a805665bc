"""The real encoder with something that happens while it is at work: what no real one can be made to do on time."""

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder, EncoderIdentity, Encodings, Role
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.packages import minilm, minilm_for_torch
from es_ttc.errors import EncoderError


class Wrapped:
    """An encoder like the one behind it; tests' own change what they are about.

    Args:
        encoder: The real one.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    @property
    def identity(self) -> EncoderIdentity:
        return self.encoder.identity

    @property
    def backend(self) -> str:
        return self.encoder.backend

    @property
    def stop_words(self) -> frozenset[str]:
        """Those of the encoder."""
        return self.encoder.stop_words

    @property
    def distinguishes_roles(self) -> bool:
        return self.encoder.distinguishes_roles

    def adapted(self, adapter: str) -> Encoder | None:
        return None

    def shortened(self, max_length: int) -> Encoder:
        return self.encoder.shortened(max_length)

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024
    ) -> Encodings:
        self.before(texts)
        return self.after(self.encoder.encode(texts, role=role, tokens=tokens, max_tokens=max_tokens))

    def before(self, texts: Sequence[str]) -> None:
        """Called before texts are encoded."""

    def after(self, encodings: Encodings) -> Encodings:
        """Called with what has come out."""
        return encodings


class Watched(Wrapped):
    """Calls a function before it encodes documents: to change them meanwhile, or to raise.

    Args:
        encoder: The real one.
        meanwhile: Given the texts.
        times: How many calls it is called for; None for all of them.
    """

    def __init__(
        self, encoder: Encoder, meanwhile: Callable[[Sequence[str]], None], *, times: int | None = None
    ) -> None:
        super().__init__(encoder)
        self._meanwhile = meanwhile
        self._times = times

    def shortened(self, max_length: int) -> Encoder:
        return Watched(self.encoder.shortened(max_length), self._meanwhile, times=self._times)

    def before(self, texts: Sequence[str]) -> None:
        if texts and (self._times is None or self._times > 0):
            self._times = None if self._times is None else self._times - 1
            self._meanwhile(texts)


class GatedEncoder(Wrapped):
    """Waits at a gate, or fails."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False

    def before(self, texts: Sequence[str]) -> None:
        assert self.gate.wait(30)
        if self.fails:
            raise EncoderError("text 0 could not be encoded: out of memory")


class Counting(Wrapped):
    """Remembers the texts that it has encoded."""

    def __init__(self, encoder: Encoder, backend: str | None = None) -> None:
        super().__init__(encoder)
        self._backend = backend
        self.seen: list[str] = []

    @property
    def backend(self) -> str:
        return self._backend or self.encoder.backend

    def before(self, texts: Sequence[str]) -> None:
        self.seen += texts


class Renamed(Wrapped):
    """Goes by another name, as another model of as many dimensions would."""

    @property
    def identity(self) -> EncoderIdentity:
        return replace(self.encoder.identity, model="another")


class Spoilt(Wrapped):
    """Gives pooled vectors that are wrong by a factor."""

    def __init__(self, encoder: Encoder, factor: float) -> None:
        super().__init__(encoder)
        self._factor = np.float32(factor)

    def after(self, encodings: Encodings) -> Encodings:
        return replace(encodings, pooled=encodings.pooled * self._factor)


def prompted(folder: Path, **prompts: str) -> Encoder:
    """Return the real MiniLM with prompts, from a model folder that is made for it.

    Args:
        folder: The folder to make.
        prompts: By role, as sentence-transformers names them: ``query``, ``document``.
    """
    hashes = FileHashes(folder.parent)
    onnx = minilm(hashes).onnx
    assert onnx is not None
    ignored = shutil.ignore_patterns("*.safetensors", "*.py")
    shutil.copytree(minilm_for_torch(hashes).folder, folder, ignore=ignored)
    (folder / "model.onnx").symlink_to(onnx)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}), encoding="utf-8")
    return load_encoder(f"{folder}@onnx")
