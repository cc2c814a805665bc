"""Blend: several signals of relevance, made comparable and added up. The default method."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from es_ttc.errors import InvalidRequest
from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.blend.normalise import Normalisation, comparable, logistic
from es_ttc.rescorers.blend.signals import (
    SIGNALS,
    SignalName,
    SignalScores,
    all_signal_scores,
    read_by,
    signals_summary,
)
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust, share_read
from es_ttc.rescorers.spectral import SpectralRescorer
from es_ttc.rescorers.spectral.params import SpectralParams
from es_ttc.vectors.tokens import Float32

BASE_SIGNALS: tuple[SignalName, ...] = ("lexical", "dense")  # signals that are available on every index with features

_EVIDENCE = SpectralRescorer()
RERANKER_WEIGHT = 0.5  # of 0.5, 1 and 2 the best on training queries (docs/results/rerankers.md)


class RerankerSignal(BaseModel):
    """The reranker whose scores are the signal `reranker`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        "msmarco-minilm",
        min_length=1,
        max_length=100,
        description="Name of a reranker that returns scores: one of the gateway's settings, or `msmarco-minilm` "
        "(es-ttc[cross-encoder]).",
    )
    top: int = Field(20, ge=2, le=100, description="Number of blend's first documents that it scores.")


class BlendParams(Params):
    """Parameters of `blend`."""

    signals: dict[SignalName | Literal["reranker"], float] | None = Field(
        None,
        description="Weight of each signal, 0 or more: `lexical` (the first pass's scores), `dense` (cosine of pooled "
        "vectors), `spectral`, `late_interaction` (ColBERT's mean over the query's tokens), `sentences` (best "
        "sentence; needs chunks). Default: those of the first four that the index supports, with weights "
        "that depend on the window. `reranker`: weight of the z-scores of a reranker that reads texts, over blend's "
        "first documents, beside 1 for those of the other signals together; alone it is added to the default signals. "
        "Through the gateway only.",
    )
    reranker: RerankerSignal | None = Field(
        None, description="The reranker of the signal `reranker`, whose weight is .5 if `signals` has none."
    )
    normalise: Normalisation = Field(
        "z",
        description="How signals are made comparable over the window's documents. `z`: distance from the mean in "
        "standard deviations; documents that the query's words single out stand higher. `minmax`: place between the "
        "least and the greatest. `rank`: 1 / (60 + rank).",
    )

    @field_validator("signals")
    @classmethod
    def _weights(cls, signals: dict[str, float] | None) -> dict[str, float] | None:
        if signals is None:
            return None
        if any(not np.isfinite(weight) or weight < 0 for weight in signals.values()):
            raise ValueError("weights must be finite numbers of 0 or more")
        if not any(signals.values()):
            raise ValueError('at least one signal must have a weight above 0, e.g. {"lexical": 1, "dense": 1}')
        return signals

    @property
    def names(self) -> tuple[SignalName, ...]:
        """The signals with a weight above 0, in the order of :data:`SIGNALS`."""
        return DEFAULT_SIGNALS if self.signals is None else tuple(name for name in SIGNALS if self.signals.get(name, 0))

    @property
    def reranker_weight(self) -> float:
        """The weight of the signal `reranker`."""
        return (self.signals or {}).get("reranker", 0.0 if self.reranker is None else RERANKER_WEIGHT)

    @property
    def required(self) -> frozenset[SignalName]:
        """Signals without which nothing is scored: those that the request names, else those that every index has."""
        return frozenset(BASE_SIGNALS if self.signals is None else self.names)


class BlendRescorer:
    """The weighted mean of several signals, each normalised over the documents of the window.

    By default it uses every signal that the index supports, and the documents nearest to the query by pooled vector
    join the window. A document without features is scored by the signals that it has. With `normalise: z` the score is
    ``1 / (1 + exp(-mean))``, in (0, 1): 0.5 is an average document.
    """

    name: ClassVar[str] = "blend"
    Params: ClassVar[type[Params]] = BlendParams
    wants: ClassVar[frozenset[Feature]] = frozenset({Feature.NORMS, Feature.OFFSETS})
    similarity: ClassVar[bool] = False
    joins_nearest: ClassVar[bool] = True

    def needs(self, params: BlendParams) -> frozenset[Feature]:
        """What the required signals read."""
        return read_by(params.required)

    def takes(self, params: BlendParams) -> frozenset[Feature]:
        """What the other signals read."""
        return read_by(params.names) - self.needs(params)

    def score(self, query: Query, window: Window, params: BlendParams) -> Float32:
        """Return the scores, ``(k,)``."""
        return shown_mean(_shares(query, window, params)[1], params.normalise)

    def score_and_signals(
        self, query: Query, window: Window, params: BlendParams
    ) -> tuple[Float32, dict[str, Float32]]:
        """Return the scores and the signals; `blend` is the mean of z-scores, absent with another `normalise`."""
        signals, shares = _shares(query, window, params)
        values: dict[str, Float32] = {name: one.values for name, one in signals.items()}
        if params.normalise == "z":
            values["blend"] = np.sum(list(shares.values()), axis=0, dtype=np.float32)
        return shown_mean(shares, params.normalise), values

    def detail(self, query: Query, window: Window, params: BlendParams) -> list[dict[str, Any]]:
        """Return each signal's score and its share of the mean; with token vectors, spectral retrieval's evidence."""
        return self.detail_of(query, window, params, range(len(window)))

    def detail_of(
        self, query: Query, window: Window, params: BlendParams, places: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Return the details of some documents; the evidence, which takes longest, is computed for these alone."""
        signals, shares = _shares(query, window, params)
        details: dict[int, dict[str, Any]] = {
            place: {
                "signals": {
                    name: {
                        "score": round(float(one.scores[place]), 6) if one.known[place] else None,
                        "share": round(float(shares[name][place]), 6),
                    }
                    for name, one in signals.items()
                }
            }
            for place in places
        }
        if "spectral" in signals:
            known = [place for place in details if signals["spectral"].known[place]]
            evidence = _EVIDENCE.detail(query, window.part(known), SpectralParams())
            for place, found in zip(known, evidence, strict=True):
                details[place] |= {key: value for key, value in found.items() if key != "score"}
        return [details[place] for place in places]

    def summary(self, query: Query, window: Window, params: BlendParams) -> dict[str, Any]:
        """Return which signals were taken, which the index lacks, and how many documents have no features.

        Where the encoder did not read all of the texts and the default weights allow for it, `read` is the share.
        """
        summary = signals_summary(params.names, self.needs(params), query, window)
        read = 1.0 if params.signals is not None else share_read(window)
        return summary if read == 1 else {**summary, "encoded_share": round(read, 4)}


def shown_mean(shares: Mapping[SignalName, Float32], normalise: Normalisation) -> Float32:
    """Return the sum of the signals' shares as it is shown: not negative, in the same order."""
    mean: Float32 = np.sum(list(shares.values()), axis=0, dtype=np.float32)
    return logistic(mean) if normalise == "z" else mean


def _shares(
    query: Query, window: Window, params: BlendParams
) -> tuple[dict[SignalName, SignalScores], dict[SignalName, Float32]]:
    """Return the signals' scores, and what each adds to the mean."""
    if params.reranker_weight:
        raise InvalidRequest("[blend] signal [reranker] reads texts, which only a search through the gateway has")
    signals = all_signal_scores(params.names, query, window)
    # Weights that a request gives are taken as they are.
    trust = Trust.of(query, window)
    weights = trust.weights(signals) if params.signals is None else {name: params.signals[name] for name in signals}
    total = sum(weights.values())
    shares = {
        name: np.float32(weights[name] / total)
        * comparable(name, one.scores, one.known, params.normalise, few_words=trust.few_words)
        for name, one in signals.items()
    }
    return signals, shares
