"""The parts of a question in turns: one order from the ranking of each part. Pure numpy.

In each round every part shows the next document of its own ranking; a document that was shown before counts as shown.
So after round r the first r documents of every part are shown, and no others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from es_ttc.serving.rescore.ranking import Ints, OrderedScores


@dataclass(frozen=True, slots=True)
class Turns:
    """The order of a question's parts.

    Attributes:
        ranking: All documents, in turns.
        ranks: ``(p, n)`` the rank of each document in each part's own ranking, from 0; n for one that is in none.
    """

    ranking: OrderedScores
    ranks: Ints

    def part_of(self, place: int) -> int:
        """Return the part whose turn a document was."""
        return int(self.ranks[:, place].argmin())

    def parts_of(self, place: int, rank: int) -> list[int]:
        """Return the parts that a document at a rank of the order is for: the part whose turn it was, then others.

        Others are those whose own ranking has it at least as high.
        """
        first = self.part_of(place)
        return [first, *(part for part in np.flatnonzero(self.ranks[:, place] <= rank).tolist() if part != first)]


def in_turns(rankings: Sequence[OrderedScores], documents: int) -> Turns:
    """Return the order in turns of p rankings of the same ones of n documents; scores never rise."""
    orders = np.stack([ranking.order for ranking in rankings])
    ranks = np.full((len(orders), documents), documents)
    np.put_along_axis(ranks, orders, np.arange(orders.shape[1])[np.newaxis], axis=1)
    turns = orders.T.ravel()
    shown = np.sort(np.unique(turns, return_index=True)[1])
    scores = np.stack([ranking.scores for ranking in rankings]).T.ravel()[shown]
    return Turns(OrderedScores(turns[shown], np.minimum.accumulate(scores)), ranks)
