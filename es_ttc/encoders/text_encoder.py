"""The encoder for all backends: cut texts into windows, run the model, join the rows."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.base import EncoderIdentity, Encodings, Role
from es_ttc.encoders.windows import InputWindow, Offsets, WindowedText
from es_ttc.errors import EncoderError, InvalidRequest
from es_ttc.vectors.tokens import Float32


@dataclass(frozen=True, slots=True)
class WindowVectors:
    """A model's result for a window of t tokens, ``(d,)`` and ``(t, d)`` float32, not normalised."""

    pooled: Float32
    tokens: Float32 | None


class WindowModel(Protocol):
    """A backend: runs windows through a frozen model; thread-safe; each window's vectors depend on it alone."""

    def run(self, windows: Sequence[InputWindow], *, role: Role, tokens: bool) -> list[WindowVectors]:
        """Return the vectors of every window, in the order given."""


class TextReader(Protocol):
    """Cuts texts into windows; see :class:`es_ttc.encoders.windows.Reader`."""

    @property
    def stop_words(self) -> frozenset[str]:
        """The stop words of the tokenizer's vocabulary."""

    def read(self, texts: Sequence[str], role: Role, max_tokens: int) -> list[WindowedText]:
        """Return the windows of texts, up to the one in which ``max_tokens`` rows are reached."""

    def shortened(self, max_length: int) -> "TextReader":
        """Return a reader that cuts windows of fewer tokens."""


class TextEncoder:
    """An :class:`~es_ttc.encoders.base.Encoder` on any backend, with what loads adapters that the model ships."""

    def __init__(
        self,
        identity: EncoderIdentity,
        backend: str,
        reader: TextReader,
        model: WindowModel,
        load_adapted: Callable[[str], "TextEncoder | None"] = lambda _: None,
        *,
        distinguishes_roles: bool = False,
    ) -> None:
        self.identity = identity
        self.backend = backend
        self._reader = reader
        self._model = model
        self._load_adapted = load_adapted
        self.distinguishes_roles = distinguishes_roles
        self._adapted: dict[str, TextEncoder | None] = {}
        self._loading = threading.Lock()

    @property
    def stop_words(self) -> frozenset[str]:
        """The stop words of the tokenizer's vocabulary."""
        return self._reader.stop_words

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024
    ) -> Encodings:
        """Encode texts; see :meth:`es_ttc.encoders.base.Encoder.encode`."""
        if max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got [{max_tokens}]")
        readings = self._reader.read(texts, role, max_tokens)
        # Pooled vectors come from the first window only.
        chosen = [reading.windows if tokens else reading.windows[:1] for reading in readings]
        flat = [window for windows in chosen for window in windows]
        vectors = iter(self._model.run(flat, role=role, tokens=tokens))
        pooled = np.zeros((len(texts), self.identity.dims), dtype=np.float32)
        matrices: list[Float32] = []
        offsets: list[NDArray[np.int32]] = []
        for position, windows in enumerate(chosen):
            parts = [next(vectors) for _ in windows]
            if parts:
                pooled[position] = self._unit(parts[0].pooled[None], position)[0]
            if tokens:
                rows = [part.tokens for part in parts if part.tokens is not None]
                matrices.append(self._unit(self._join(rows, max_tokens), position))
                offsets.append(_join_offsets(windows, max_tokens))
        shares = tuple(_encoded_share(reading, text) for reading, text in zip(readings, texts, strict=True))
        return Encodings(pooled, matrices, offsets, _truncated(readings), shares)

    def adapted(self, adapter: str) -> "TextEncoder | None":
        """Return the same model with an adapter that it ships; see :meth:`es_ttc.encoders.base.Encoder.adapted`."""
        with self._loading:
            if adapter not in self._adapted:
                self._adapted[adapter] = self._load_adapted(adapter)
            return self._adapted[adapter]

    def shortened(self, max_length: int) -> "TextEncoder":
        """Return this encoder, with shared weights, with at most ``max_length`` tokens per input."""
        if max_length >= self.identity.max_length:
            return self

        def adapted(adapter: str) -> TextEncoder | None:
            found = self.adapted(adapter)
            return None if found is None else found.shortened(max_length)

        return TextEncoder(
            replace(self.identity, max_length=max_length),
            self.backend,
            self._reader.shortened(max_length),
            self._model,
            adapted,
            distinguishes_roles=self.distinguishes_roles,
        )

    def _join(self, rows: list[Float32], max_tokens: int) -> Float32:
        if not rows:
            return np.zeros((0, self.identity.dims), dtype=np.float32)
        return rows[0][:max_tokens] if len(rows) == 1 else np.concatenate(rows)[:max_tokens]

    def _unit(self, rows: Float32, position: int) -> Float32:
        """Truncate rows to ``dims`` components and normalise them."""
        cut = rows[:, : self.identity.dims]
        norms: Float32 = np.sqrt(np.einsum("ij,ij->i", cut, cut))[:, None]
        if not np.isfinite(norms).all():
            raise EncoderError(
                f"text {position} got components that are no finite numbers from {self.identity.model} "
                f"({self.backend}): take float32 arithmetic"
            )
        norms[norms == 0] = 1
        return cut / norms


def _join_offsets(windows: Sequence[InputWindow], max_tokens: int) -> NDArray[np.int32]:
    if not windows:
        return np.zeros((0, 2), dtype=np.int32)
    return np.concatenate([_kept_offsets(window) for window in windows])[:max_tokens]


def _kept_offsets(window: InputWindow) -> Offsets:
    """Return the offsets of the tokens whose vectors are the text's."""
    return window.offsets if window.kept is None else window.offsets[window.kept]


def _encoded_share(reading: WindowedText, text: str) -> float:
    """Return the share of a text's characters in its first window."""
    if len(reading.windows) < 2 and not reading.truncated:
        return 1.0
    return int(reading.windows[0].offsets[:, 1].max()) / len(text)


def _truncated(readings: Sequence[WindowedText]) -> NDArray[np.bool_]:
    return np.array([reading.truncated for reading in readings], dtype=np.bool_)
