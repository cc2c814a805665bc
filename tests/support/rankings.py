"""Rankings of searches, compared by scores and by documents; ties may stand in any order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Ranking:
    """The documents of a page and their scores, best first."""

    ids: Sequence[str]
    scores: Sequence[float]

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Ranking":
        """Return the ranking of a search's decoded answer."""
        hits = answer["hits"]["hits"]
        return cls([hit["_id"] for hit in hits], [float(hit["_score"]) for hit in hits])

    def apart(self, other: "Ranking") -> float:
        """Return the greatest difference of the scores of a document that is in both; 0 without such a document."""
        others = dict(zip(other.ids, other.scores, strict=True))
        pairs = zip(self.ids, self.scores, strict=True)
        return max((abs(score - others[name]) for name, score in pairs if name in others), default=0.0)

    def same(self, other: "Ranking", tolerance: float = TOLERANCE) -> bool:
        """Return whether both have the same documents with the same scores in the same order.

        Documents whose scores differ by no more than the tolerance may stand in any order, and at the end of the page
        one of them may stand for another.
        """
        if len(self.ids) != len(other.ids) or self.apart(other) > tolerance:
            return False
        if any(abs(one - two) > tolerance for one, two in zip(self.scores, other.scores, strict=True)):
            return False
        last = min([*self.scores, *other.scores], default=0.0)
        alone = [
            score
            for one, two in ((self, other), (other, self))
            for name, score in zip(one.ids, one.scores, strict=True)
            if name not in set(two.ids)
        ]
        return all(score - last <= tolerance for score in alone)

    def shared(self, other: "Ranking") -> int:
        """Return the number of documents that are in both."""
        return len({*self.ids} & {*other.ids})
