"""Encoders that have a short name: what is known of them before anything is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Backend = Literal["torch", "onnx", "vllm"]


@dataclass(frozen=True, slots=True)
class NamedEncoder:
    """An encoder with a short name, and the extra of es-ttc for each backend, the default one first."""

    short: str
    public: str
    extras: Mapping[Backend, str]
    languages: tuple[str, ...] = ("English",)  # languages that it is trained for, as its card states; empty: many

    @property
    def default_backend(self) -> Backend:
        """The backend of a name that names none: the same on every machine, whatever is installed there."""
        return next(iter(self.extras))


NAMED: Mapping[str, NamedEncoder] = {
    encoder.short: encoder
    for encoder in (
        NamedEncoder("minilm", "all-MiniLM-L6-v2", {"onnx": "minilm", "torch": "torch", "vllm": "minilm"}),
        NamedEncoder("mpnet", "all-mpnet-base-v2", {"torch": "mpnet", "vllm": "mpnet"}),
        NamedEncoder("colbert-small", "answerai-colbert-small-v1", {"onnx": "cross-encoder"}),
        NamedEncoder("bge-small", "bge-small-en-v1.5", {"onnx": "bge-small"}),
        NamedEncoder("e5-small", "e5-small-v2", {"onnx": "e5-small"}),
        NamedEncoder("multilingual-e5-small", "multilingual-e5-small", {"onnx": "multilingual"}, languages=()),
    )
}
"""By short name: encoders that need no model hub."""

SHORT_NAMES: tuple[str, ...] = tuple(NAMED)
BY_PUBLIC_NAME: Mapping[str, NamedEncoder] = {encoder.public: encoder for encoder in NAMED.values()}


def named(name: str) -> NamedEncoder | None:
    """Return the encoder of a short or public name; a folder of a public name is another model."""
    return NAMED.get(name) or (None if Path(name).is_dir() else BY_PUBLIC_NAME.get(name))
