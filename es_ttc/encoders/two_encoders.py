"""Two encoders as one: pooled vectors by the first, token vectors by the second."""

from collections.abc import Sequence
from dataclasses import replace

from es_ttc.encoders.base import Encoder, Encodings, Role


class TwoEncoders:
    """Pooled vectors of one encoder, token vectors of another; see :class:`es_ttc.encoders.base.Encoder`.

    A dense model finds documents by kNN, and a late-interaction model compares tokens. The two kinds of vectors do not
    compare with each other: late interaction reads the query's tokens, and spectral retrieval the mean of its words.
    """

    def __init__(self, pooled: Encoder, tokens: Encoder) -> None:
        self._pooled = pooled
        self._tokens = tokens
        self.identity = replace(pooled.identity, tokens=tokens.identity)
        self.backend = f"{pooled.backend}; tokens: {tokens.backend}"
        self.distinguishes_roles = pooled.distinguishes_roles

    @property
    def stop_words(self) -> frozenset[str]:
        """The stop words of the encoder of token vectors."""
        return self._tokens.stop_words

    def encode(
        self, texts: Sequence[str], *, role: Role = "document", tokens: bool = True, max_tokens: int = 1024
    ) -> Encodings:
        """Encode texts, by one encoder or by both."""
        pooled = self._pooled.encode(texts, role=role, tokens=False, max_tokens=max_tokens)
        if not tokens:
            return pooled
        of_tokens = self._tokens.encode(texts, role=role, max_tokens=max_tokens)
        shares = tuple(map(min, pooled.encoded_shares, of_tokens.encoded_shares))
        return replace(of_tokens, pooled=pooled.pooled, encoded_shares=shares)

    def adapted(self, adapter: str) -> "TwoEncoders | None":
        """Return both with an adapter that the first one ships; None if it ships none of this name."""
        pooled = self._pooled.adapted(adapter)
        return None if pooled is None else TwoEncoders(pooled, self._tokens)

    def shortened(self, max_length: int) -> "TwoEncoders":
        """Return both with at most ``max_length`` tokens of a text for the pooled vector."""
        return TwoEncoders(self._pooled.shortened(max_length), self._tokens)
