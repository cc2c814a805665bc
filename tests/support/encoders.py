"""The real encoder with something that happens while it is at work."""

from collections.abc import Callable, Sequence

from es_ttc.encoders.base import Encoder, EncoderIdentity, Encodings, Role


class Watched:
    """Calls a function before it encodes documents: to change them meanwhile, or to raise.

    Args:
        encoder: The real one.
        before: Given the texts.
        times: How many calls it is called for; None for all of them.
    """

    def __init__(self, encoder: Encoder, before: Callable[[Sequence[str]], None], *, times: int | None = None) -> None:
        self._encoder = encoder
        self._before = before
        self._times = times

    @property
    def identity(self) -> EncoderIdentity:
        return self._encoder.identity

    @property
    def backend(self) -> str:
        return self._encoder.backend

    def adapted(self, adapter: str) -> Encoder | None:
        return None

    def shortened(self, max_length: int) -> Encoder:
        return Watched(self._encoder.shortened(max_length), self._before, times=self._times)

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024
    ) -> Encodings:
        if texts and (self._times is None or self._times > 0):
            self._times = None if self._times is None else self._times - 1
            self._before(texts)
        return self._encoder.encode(texts, role=role, tokens=tokens, max_tokens=max_tokens)
