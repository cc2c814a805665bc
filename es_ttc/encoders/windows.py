"""Cut texts into a model's input windows: tokens, special tokens, prompts and character offsets."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from es_ttc.common.whole_words import with_marks
from es_ttc.encoders.base import Role
from es_ttc.encoders.stop_words import stop_words
from es_ttc.errors import ConfigurationError, EncoderError

Offsets = NDArray[np.int32]

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class InputWindow:
    """One input of the model of t tokens, special ones and the prompt's included."""

    ids: list[int]
    type_ids: list[int]
    offsets: Offsets  # (t, 2) int32, characters of the text; special tokens and the prompt's have empty spans
    lead: int  # tokens before the text's own: leading special tokens and the prompt's
    unattended: int = 0  # tokens at the end that the others do not attend to (query expansion)
    kept: NDArray[np.bool_] | None = None  # (t,) bool, the tokens whose vectors are the text's; None for all


@dataclass(frozen=True, slots=True)
class WindowedText:
    """The windows of one text; none for a text without tokens of its own."""

    windows: list[InputWindow]
    truncated: bool


def role_prompts(prompts: Mapping[str, str | None], default_name: str | None) -> dict[Role, str]:
    """Return each role's prompt, chosen as sentence-transformers does ("" for none)."""
    default = prompts.get(default_name) if default_name else None

    def first_of(*names: str) -> str:
        return next((prompts[name] for name in names if name in prompts), default) or ""

    return {"query": first_of("query"), "document": first_of("document", "passage", "corpus")}


def prompts_differ(prompts: Mapping[Role, str]) -> bool:
    """Return whether the two roles have different prompts."""
    return prompts["query"] != prompts["document"]


def copied(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer of its own for a reader, where a model's library changes the one that it has."""
    return Tokenizer.from_str(tokenizer.to_str())


class Reader:
    """Tokenizes texts and cuts them into windows; thread-safe, because the tokenizer is not changed later."""

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, prompts: Mapping[Role, str]) -> None:
        self._tokenizer = tokenizer
        if tokenizer.truncation is not None or tokenizer.padding is not None:
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._max_length = max_length
        self._prompts = dict(prompts)
        self._probe_special_tokens()
        for role, prompt in self._prompts.items():
            taken = self.special + len(self._tokenizer.encode(prompt, add_special_tokens=False).ids)
            if taken >= max_length:
                raise ConfigurationError(
                    f"max_length [{max_length}] leaves no room for text beside {taken} special and {role} prompt "
                    f"tokens: choose a larger one"
                )

    def _probe_special_tokens(self) -> None:
        """Find the tokens before and after a text by tokenizing a text with and without them."""
        bare = self._tokenizer.encode("a", add_special_tokens=False)
        whole = self._tokenizer.encode("a")
        start = whole.special_tokens_mask.index(0)
        stop = start + len(bare.ids)
        self._prefix, self._prefix_types = whole.ids[:start], whole.type_ids[:start]
        self._suffix, self._suffix_types = whole.ids[stop:], whole.type_ids[stop:]
        self._type = whole.type_ids[start]

    @cached_property
    def stop_words(self) -> frozenset[str]:
        """The stop words of the tokenizer's vocabulary."""
        return stop_words(self._tokenizer)

    def shortened(self, max_length: int) -> Self:
        """Return a reader of the same tokens that cuts windows of fewer."""
        return type(self)(self._tokenizer, max_length=max_length, prompts=self._prompts)

    @property
    def special(self) -> int:
        """Special tokens in every window."""
        return len(self._prefix) + len(self._suffix)

    def read(self, texts: Sequence[str], role: Role, max_tokens: int) -> list[WindowedText]:
        """Return the windows of texts, up to the one in which ``max_tokens`` rows are reached.

        A lone surrogate, which UTF-8 cannot represent, is read as U+FFFD; offsets refer to the original text.
        """
        prompt = self._prompts[role]
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise EncoderError(f"text {position} must be a string, got {type(text).__name__}")
        prompted = [prompt + _LONE_SURROGATES.sub(_REPLACEMENT, text) for text in texts]
        encoded = self._tokenizer.encode_batch(prompted, add_special_tokens=False)
        return [
            self._cut(one.ids, with_marks(text, one.offsets), len(prompt), max_tokens)
            for text, one in zip(prompted, encoded, strict=True)
        ]

    def _cut(
        self, ids: list[int], spans: Sequence[tuple[int, int]], prompt_chars: int, max_tokens: int
    ) -> WindowedText:
        offsets = np.array(spans, dtype=np.int32).reshape(-1, 2)
        # The prompt is tokenized together with the text, as in the model's own library; every window begins with it.
        prompt_tokens = 0
        if prompt_chars:
            prompt_tokens = int(np.count_nonzero(np.maximum.accumulate(offsets[:, 1]) <= prompt_chars))
            offsets = np.maximum(offsets - prompt_chars, 0)
        own = len(ids) - prompt_tokens
        overhead = self.special + prompt_tokens
        capacity = self._max_length - overhead
        if own and capacity < 1:
            raise EncoderError(f"the prompt's {prompt_tokens} tokens leave no room for text in {self._max_length}")
        windows: list[InputWindow] = []
        rows = 0
        for start in range(prompt_tokens, len(ids), capacity if own else 1):
            if rows >= max_tokens:
                break
            stop = min(start + capacity, len(ids))
            windows.append(self._window(ids, offsets, prompt_tokens, start, stop))
            rows += overhead + stop - start
        total = own + -(-own // capacity) * overhead if own else 0
        return WindowedText(windows, truncated=total > max_tokens)

    def _window(self, ids: list[int], offsets: Offsets, prompt_tokens: int, start: int, stop: int) -> InputWindow:
        lead = len(self._prefix) + prompt_tokens
        spans = np.zeros((lead + stop - start + len(self._suffix), 2), dtype=np.int32)
        spans[lead : lead + stop - start] = offsets[start:stop]
        return InputWindow(
            ids=[*self._prefix, *ids[:prompt_tokens], *ids[start:stop], *self._suffix],
            type_ids=[*self._prefix_types, *[self._type] * (prompt_tokens + stop - start), *self._suffix_types],
            offsets=spans,
            lead=lead,
        )
