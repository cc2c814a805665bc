"""What an encoder is: texts in; pooled vectors, token vectors and character offsets out."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Role = Literal["query", "document"]

_SHAPE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """What makes two encoders interchangeable: it is stored with the index and compared at every query.

    The backend and its arithmetic (torch, ONNX Runtime; float32, bfloat16, int8) are not part of it: they differ by
    rounding only, and an index may be written with one and queried with another.

    Attributes:
        model: The model's public name, e.g. ``all-MiniLM-L6-v2``, or the folder's name.
        revision: First 12 hexadecimal digits of the SHA-256 over the weights' and tokenizer's canonical content (for
            built-in names: a constant of the release that all its backends share).
        dims: Components of a vector (after Matryoshka truncation).
        max_length: Tokens that the model reads at once, special ones included.
        prompts: The query and document prompts' SHA-256 prefix, or "" without prompts.
        adapter: The adapter's name, or "".
    """

    model: str
    revision: str
    dims: int
    max_length: int
    prompts: str = ""
    adapter: str = ""

    @property
    def key(self) -> str:
        """One line that names the identity: the value of ``ttc.encoder`` in every document."""
        extras = "".join(f"+{part}" for part in (self.prompts, self.adapter) if part)
        return f"{self.model}@{self.revision}/{self.dims}x{self.max_length}{extras}"

    def cut_to(self, key: str) -> Self | None:
        """Return the identity that a key names, where this encoder becomes it by cutting; else None.

        Args:
            key: The :attr:`key` of an identity. Model, revision, prompts and adapter must be this one's, dimensions and
                length at most its own.
        """
        shape = _SHAPE.match(key.removeprefix(f"{self.model}@{self.revision}/"))
        if shape is None:
            return None
        cut = replace(self, dims=int(shape[1]), max_length=int(shape[2]))
        fits = 1 <= cut.dims <= self.dims and 1 <= cut.max_length <= self.max_length
        return cut if fits and cut.key == key else None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read back :meth:`as_dict`."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Encodings:
    """The encodings of n texts, in the order given.

    Attributes:
        pooled: ``(n, d)`` float32 unit rows (a zero row for a text without any token of its own: empty, white space,
            control characters): the model's own sentence embedding, so ``dense`` is what everyone calls dense for
            this model; a text longer than ``max_length`` tokens is cut for it, as the model's own library does.
        tokens: n arrays ``(t_i, d)`` float32, unit rows: every token, special ones and the prompt's included. A text
            longer than ``max_length`` is read in consecutive windows, each with its own special tokens and prompt,
            whose rows follow each other, up to ``max_tokens``. A text without any token of its own has no rows. Empty
            list when tokens were not asked for.
        offsets: n arrays ``(t_i, 2)`` int32: first and end character (code point) of each token in the text; a token
            of the model's or the prompt's has an empty span. Empty list when tokens were not asked for.
        truncated: ``(n,)`` bool: True where the text was longer than ``max_tokens``.
    """

    pooled: Float32
    tokens: list[Float32]
    offsets: list[NDArray[np.int32]]
    truncated: NDArray[np.bool_]


class Encoder(Protocol):
    """A frozen encoder; thread-safe, and deterministic for a given text whatever the batch."""

    @property
    def identity(self) -> EncoderIdentity:
        """What the vectors depend on."""
        ...

    @property
    def backend(self) -> str:
        """Backend and arithmetic for people, e.g. ``sentence-transformers, float32, cpu``."""
        ...

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024
    ) -> Encodings:
        """Encode texts.

        Args:
            texts: Any strings, empty ones included. A lone surrogate, which UTF-8 can't hold, is read as U+FFFD.
            role: Which prompt goes before the text, for models that have prompts.
            tokens: Whether token vectors and offsets are wanted; pooled vectors alone are cheaper to return.
            max_tokens: Rows kept of one text's token matrix; 1 or more.

        Raises:
            EncoderError: A text could not be encoded; the message names its position.
        """
        ...
