"""The contract of an encoder: texts in; pooled vectors, token vectors and character offsets out."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from es_ttc.encoders.models import of_public_name
from es_ttc.vectors.tokens import Float32

Role = Literal["query", "document"]

_SHAPE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")
MEAN_POOLING = "mean"
TOKENS_FROM = "|"  # stands between the names, and the keys, of the encoders of pooled and of token vectors
_LATE = "late-"  # stands before `EncoderIdentity.late` in a key
_ADAPTER_IN_KEY = re.compile(
    rf"/[0-9]+x[0-9]+(?:\+[0-9a-f]{{8}})?(?:\+{_LATE}[0-9a-f]{{8}})?\+(.+)@[0-9a-f]{{12}}$", re.DOTALL
)
_LATE_IN_KEY = re.compile(rf"\+{_LATE}[0-9a-f]{{8}}")
_ADAPTER = re.compile(r"\+(.+@[0-9a-f]{12})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """The identity of an encoder, stored with the index and compared at every query.

    The backend and its arithmetic (torch, ONNX Runtime; float32, bfloat16, int8) are not part of it: they differ by
    rounding only, and an index may be written with one and queried with another.

    Attributes:
        model: The model's public name, e.g. ``all-MiniLM-L6-v2``, or the folder's name.
        revision: First 12 hexadecimal digits of the SHA-256 over the weights' and tokenizer's canonical content (for
            built-in names: a constant of the release that all its backends share).
        dims: Number of components of a vector (after Matryoshka truncation).
        max_length: Maximum number of tokens of one input, special ones included.
        prompts: The query and document prompts' SHA-256 prefix, or "" without prompts.
        adapter: The adapter's name and revision, e.g. ``law@0123456789ab``, or "".
        late: SHA-256 prefix of what makes it a late-interaction model (query length and expansion, skipped tokens,
            projection), or "" for a dense encoder.
        pooling: How tokens become the pooled vector: ``mean``, ``cls`` and others by sentence-transformers' names. It
            follows from the revision, so it is not compared.
        tokens: The identity of another encoder that gives the token vectors, or None.
    """

    model: str
    revision: str
    dims: int
    max_length: int
    prompts: str = ""
    adapter: str = ""
    late: str = ""
    pooling: str = field(default=MEAN_POOLING, compare=False)
    tokens: "EncoderIdentity | None" = None

    @property
    def key(self) -> str:
        """The identity as one line: the value of ``ttc.encoder`` in every document."""
        late = f"{_LATE}{self.late}" if self.late else ""
        extras = "".join(f"+{part}" for part in (self.prompts, late, self.adapter) if part)
        tokens = "" if self.tokens is None else f"{TOKENS_FROM}{self.tokens.key}"
        return f"{self.model}@{self.revision}/{self.dims}x{self.max_length}{extras}{tokens}"

    @property
    def of_tokens(self) -> "EncoderIdentity":
        """The identity of the encoder that gives the token vectors."""
        return self if self.tokens is None else self.tokens

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that the model is trained for; empty if they are not known, or an adapter may change them."""
        encoder = of_public_name(self.model)
        return () if self.adapter or encoder is None else encoder.languages

    @property
    def late_interaction(self) -> bool:
        """Whether its token vectors are trained for late interaction, or are another encoder's than the pooled ones."""
        return bool(self.late) or self.tokens is not None

    @property
    def averages(self) -> bool:
        """Whether its pooled vectors are means of token vectors, so that means of some tokens compare with them."""
        return self.pooling == MEAN_POOLING and self.tokens is None

    @property
    def adapter_name(self) -> str:
        """The adapter's name without its revision, or ""."""
        return self.adapter.rpartition("@")[0]

    def variant(self, key: str) -> Self | None:
        """Return the identity of a key if this encoder can have it by truncation or by an adapter; else None.

        Args:
            key: The :attr:`key` of an identity. Model, revision and prompts must be this one's, dimensions and length
                at most its own, and the adapter this one's where it has one.
        """
        shape = _SHAPE.match(key.removeprefix(f"{self.model}@{self.revision}/"))
        if shape is None:
            return None
        found = replace(self, dims=int(shape[1]), max_length=int(shape[2]))
        adapter = None if self.adapter else _ADAPTER.fullmatch(key.removeprefix(found.key))
        if adapter is not None:
            found = replace(found, adapter=adapter[1])
        fits = 1 <= found.dims <= self.dims and 1 <= found.max_length <= self.max_length
        return found if fits and found.key == key else None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form, without what most encoders do not have: late interaction, another pooling."""
        usual = {"late": "", "pooling": MEAN_POOLING, "tokens": None}
        return {name: value for name, value in asdict(self).items() if name not in usual or usual[name] != value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the identity of :meth:`as_dict`.

        Raises:
            TypeError, ValueError: It is none.
        """
        tokens = dict(data).get("tokens")
        return cls(**{**data, "tokens": None if tokens is None else cls.from_dict(tokens)})


def name_in(key: str) -> str:
    """Return an encoder's name from its identity's key, quoted for a shell."""
    return shlex.quote(loadable_name(key))


def loadable_name(key: str) -> str:
    """Return an encoder's name, ``model``, ``model+adapter``, or two of these, from its identity's key."""
    names = []
    for part in key.split(TOKENS_FROM):
        adapter = _ADAPTER_IN_KEY.search(part)
        model = part.partition("@")[0]
        described = of_public_name(model)
        short = described.short if described else model
        names.append(f"{short}+{adapter[1]}" if adapter else short)
    return TOKENS_FROM.join(names)


def fix_for(stored: str, present: Iterable[str], otherwise: str) -> str:
    """Return how to get from one encoder to another, or the fix `otherwise` where they are other models."""
    model, content = _content(stored)
    if any(_content(key)[0] == model and _content(key)[1] != content for key in present):
        return f"[{model}] has changed since, so put its files back, or make the index anew with it"
    return otherwise


def _content(key: str) -> tuple[str, str]:
    """Return an identity's model, and what follows from the model's files alone."""
    model, _, rest = key.partition(TOKENS_FROM)[0].partition("@")
    late = _LATE_IN_KEY.search(rest)
    return model, rest.partition("/")[0] + (late[0] if late else "")


def or_folder(key: str) -> str:
    """Return an addition to :func:`name_in` for messages: a key may belong to an adapter or to a trained folder."""
    return ", or the folder that `es-ttc train` wrote, if it did" if _ADAPTER_IN_KEY.search(key) else ""


@dataclass(frozen=True, slots=True)
class Encodings:
    """The encodings of n texts, in the order given.

    Attributes:
        pooled: ``(n, d)`` float32 unit rows: the model's own sentence embedding, so ``dense`` is the usual dense
            retrieval for this model; the mean of the token vectors for a late-interaction model. A text longer than
            ``max_length`` tokens is truncated for it, as the model's own library does. The row is zero for a text
            without tokens of its own (empty, white space, control characters).
        tokens: n arrays ``(t_i, d)`` float32, unit rows: every token, special ones and the prompt's included. A text
            longer than ``max_length`` is encoded in consecutive windows, each with its own special tokens and prompt,
            whose rows follow each other, up to ``max_tokens``. A text without tokens of its own has no rows. Empty list
            if tokens were not requested. A late-interaction model reads one window, leaves out the tokens of its
            skiplist and fills up queries.
        offsets: n arrays ``(t_i, 2)`` int32: first and end character (code point) of each token in the text; special
            tokens and those of the prompt have an empty span. Empty list if tokens were not requested.
        truncated: ``(n,)`` bool: True where the text was longer than ``max_tokens``, or than a late-interaction model
            reads.
        encoded_shares: For each text the share of its characters in the first window, from which ``pooled`` is made, in
            [0, 1]; the lesser one of two encoders. Empty from a cache of an earlier release.
    """

    pooled: Float32
    tokens: list[Float32]
    offsets: list[NDArray[np.int32]]
    truncated: NDArray[np.bool_]
    encoded_shares: tuple[float, ...] = ()


class Encoder(Protocol):
    """A frozen encoder; thread-safe, and deterministic for a text whatever the batch."""

    @property
    def identity(self) -> EncoderIdentity:
        """The encoder's identity."""

    @property
    def backend(self) -> str:
        """Backend and arithmetic for display, e.g. ``sentence-transformers, float32, cpu``."""

    @property
    def distinguishes_roles(self) -> bool:
        """Whether a text may have one vector as a query and another as a document.

        So it is with prompts, adapters, models or heads that differ by role, and with late interaction. It follows from
        what the identity names, so it is no part of it.
        """

    @property
    def stop_words(self) -> frozenset[str]:
        """The most frequent words of its languages, in lower case; see :mod:`es_ttc.encoders.stop_words`."""

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024
    ) -> Encodings:
        """Encode texts.

        Args:
            texts: Any strings, also empty ones. A lone surrogate, which UTF-8 cannot represent, is read as U+FFFD.
            role: Selects the prompt, for models with prompts.
            tokens: Whether token vectors and offsets are returned; pooled vectors alone are cheaper.
            max_tokens: Maximum number of rows of one text's token matrix; 1 or more.

        Raises:
            EncoderError: A text could not be encoded; the message names its position.
        """

    def adapted(self, adapter: str) -> "Encoder | None":
        """Return the same model with an adapter that it ships, in place of its own; None if there is no such adapter.

        It is loaded at the first call, and kept.

        Args:
            adapter: Its name in the model's folder, e.g. ``text-matching``.

        Raises:
            ConfigurationError: The adapter cannot be loaded.
        """

    def shortened(self, max_length: int) -> "Encoder":
        """Return the same model with at most ``max_length`` tokens of a text for its pooled vector.

        Weights are shared. A length that is not below the model's own changes nothing.
        """
