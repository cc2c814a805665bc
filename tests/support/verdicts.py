"""What an answer of a gateway is worth, when the right ranking is known and nodes of the cluster come and go."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from tests.support.rankings import Ranking

OURS = "ttc_"
"""Beginning of the types of errors that are not the engine's."""


class Verdict(StrEnum):
    """What an answer is worth; the last three are faults."""

    RIGHT = "right, by the method"
    FELL_BACK = "the engine's own ranking, marked"
    PARTIAL = "another ranking, marked"
    SHARDS_LOST = "from a part of the shards, as the engine says"
    ENGINE_FAILED = "the engine's own error"
    UNANSWERED = "no answer"
    WRONG = "a wrong ranking"
    UNMARKED = "not by the method, without a reason"

    @property
    def is_fault(self) -> bool:
        """Whether an answer must not be so."""
        return self in (Verdict.UNANSWERED, Verdict.WRONG, Verdict.UNMARKED)


def verdict(status: int, answer: Mapping[str, Any], right: Ranking, engines_own: Ranking | None) -> Verdict:
    """Return what the answer to a search is worth.

    Args:
        status: The HTTP status.
        answer: The decoded body.
        right: The ranking by the method.
        engines_own: The ranking that the engine gives without it; None where that is not known.
    """
    if status != 200:
        error = answer.get("error") or {}
        kind = str(error.get("type", "")) if isinstance(error, Mapping) else ""
        return Verdict.UNANSWERED if not kind or kind.startswith(OURS) else Verdict.ENGINE_FAILED
    if answer["_shards"]["failed"] or answer.get("timed_out"):
        return Verdict.SHARDS_LOST
    ranking, ttc = Ranking.of(answer), answer.get("ttc")
    if ttc is None:  # a search without a section
        return Verdict.RIGHT if ranking.same(right) else Verdict.WRONG
    if not ttc["applied"]:
        if not reasons(ttc):
            return Verdict.UNMARKED
        return Verdict.FELL_BACK if engines_own is None or ranking.same(engines_own) else Verdict.WRONG
    if ranking.same(right):
        return Verdict.RIGHT
    return Verdict.PARTIAL if reasons(ttc) else Verdict.WRONG


def reasons(ttc: Mapping[str, Any]) -> list[str]:
    """Return the reasons that a summary gives for what was left out."""
    given = [part.get("reason") for part in (ttc, ttc.get("candidates", {}), *ttc.get("items", ()))]
    return [reason for reason in given if reason]
