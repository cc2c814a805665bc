"""The signals that a blend adds up: what each reads, and how it scores the documents that have it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from es_ttc.rescorers import compiled
from es_ttc.rescorers.base import Feature, Params, Query, Rescorer, Window
from es_ttc.rescorers.blend.normalise import Mask
from es_ttc.rescorers.dense import DenseParams, DenseRescorer
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.rescorers.programs.rescorers import ProgramParams, rescorer_of
from es_ttc.rescorers.spectral import SpectralRescorer
from es_ttc.rescorers.spectral.greatest import greatest_cosines
from es_ttc.rescorers.spectral.params import SpectralParams
from es_ttc.vectors.tokens import Float32

SignalName = Literal["lexical", "dense", "spectral", "late_interaction", "sentences"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal: the features that it needs, and the ``(m,)`` scores of a window of m documents that have them."""

    reads: frozenset[Feature]
    score: Callable[[Query, Window], Float32]


@dataclass(frozen=True, slots=True)
class SignalScores:
    """One signal's ``(k,)`` scores of a window, 0 where a document does not have it, and which documents do."""

    scores: Float32
    known: Mask

    @property
    def values(self) -> Float32:
        """The scores, ``(k,)``; NaN where the document does not have the signal."""
        return np.where(self.known, self.scores, np.float32(np.nan))


def _first_pass(query: Query, window: Window) -> Float32:  # noqa: ARG001
    return window.first_pass


def _by(rescorer: Rescorer[Any], params: Params) -> Signal:
    return Signal(rescorer.needs(params), partial(_scored_by, rescorer, params))


def _scored_by(rescorer: Rescorer[Any], params: Params, query: Query, window: Window) -> Float32:
    scores: Float32 = rescorer.score(query, window, params)
    return scores


SIGNALS: Mapping[SignalName, Signal] = {
    "lexical": Signal(frozenset({Feature.FIRST_PASS}), _first_pass),
    "dense": _by(DenseRescorer(), DenseParams()),
    "spectral": _by(SpectralRescorer(), SpectralParams()),
    "late_interaction": _by(MaxSimRescorer(), MaxSimParams(query="tokens")),
    "sentences": _by(rescorer_of("sentmaxsim"), ProgramParams()),
}
"""Every signal, in the order in which it is shown."""
_PASS: frozenset[SignalName] = frozenset({"spectral", "late_interaction"})  # one pass gives them


def has_signal(name: SignalName, query: Query, window: Window) -> bool:
    """Whether a window and a query carry what a signal reads."""
    return all(_carried(feature, query, window) for feature in SIGNALS[name].reads)


def read_by(names: Iterable[SignalName]) -> frozenset[Feature]:
    """Return what some signals read."""
    return frozenset(feature for name in names for feature in SIGNALS[name].reads)


def signals_summary(
    names: Iterable[SignalName], needs: frozenset[Feature], query: Query, window: Window
) -> dict[str, Any]:
    """Return which of some signals are taken, which the index lacks, and how many documents have no features."""
    names = list(names)
    taken = [name for name in names if has_signal(name, query, window)]
    summary: dict[str, Any] = {"signals": taken}
    if lacking := [name for name in names if name not in taken]:
        summary["missing_signals"] = lacking
    without = int((~documents_with(needs - {Feature.FIRST_PASS}, window)).sum())
    return {**summary, "without_features": without} if without else summary


def signal_matrix(names: Sequence[SignalName], query: Query, window: Window) -> Float32:
    """Return signals' scores as columns, ``(k, s)``; NaN where a document does not have one."""
    scores = all_signal_scores(names, query, window)
    missing = np.full(len(window), np.nan, np.float32)
    return np.stack([scores[name].values if name in scores else missing for name in names], axis=1)


def all_signal_scores(names: Iterable[SignalName], query: Query, window: Window) -> dict[SignalName, SignalScores]:
    """Return the scores of those signals that a window has; those of all token vectors share one pass over them."""
    names = [name for name in names if has_signal(name, query, window)]
    shared = {} if not set(names) >= _PASS or not compiled.enabled() else _in_one_pass(query, window)
    return {name: shared[name] if name in shared else signal_scores(name, query, window) for name in names}


def _in_one_pass(query: Query, window: Window) -> dict[SignalName, SignalScores]:
    """Return the scores of spectral retrieval and of late interaction."""
    known = documents_with(frozenset({Feature.TOKENS}), window)
    held = part_of(window, known)
    assert held.tokens is not None  # noqa: S101 - both are carried
    assert query.tokens is not None  # noqa: S101 - both are carried
    found = greatest_cosines(query.of_tokens, held.tokens, held.norms, SpectralParams().scales, plain=query.tokens)
    ends = len(query.vectors)
    spectral, late = np.zeros(len(window), np.float32), np.zeros(len(window), np.float32)
    spectral[known] = np.clip(found[:, :ends].max(axis=1), -1, 1)
    if len(query.tokens):
        late[known] = np.clip(found[:, ends:].mean(axis=1), -1, 1)
    return {"spectral": SignalScores(spectral, known), "late_interaction": SignalScores(late, known)}


def signal_scores(name: SignalName, query: Query, window: Window) -> SignalScores:
    """Return a signal's scores of the documents that have it."""
    signal = SIGNALS[name]
    known = documents_with(signal.reads - {Feature.FIRST_PASS}, window)
    scores = np.zeros(len(window), np.float32)
    if known.any():
        scores[known] = signal.score(query, part_of(window, known))
    return SignalScores(scores, known)


def documents_with(features: frozenset[Feature], window: Window) -> Mask:
    """Return which documents of a window have all of some features, ``(k,)``."""
    known = np.ones(len(window), np.bool_)
    for feature in features & window.present.keys():
        known &= window.present[feature]
    return known


def part_of(window: Window, known: Mask) -> Window:
    """Return those documents of a window that have what is read, as a window of their own; all of it where all have."""
    return window if known.all() else window.part(np.flatnonzero(known).tolist())


def _carried(feature: Feature, query: Query, window: Window) -> bool:
    match feature:
        case Feature.FIRST_PASS:
            return True
        case Feature.QUERY_TOKENS:
            return query.tokens is not None
        case _:
            return getattr(window, feature.value) is not None
