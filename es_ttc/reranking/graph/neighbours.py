"""A directed graph of bounded degree over numbered documents."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ABSENT = -1
"""Fills the end of a row with fewer neighbours than the maximum degree."""

Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NeighbourGraph:
    """Each document's neighbours, nearest first.

    Attributes:
        table: ``(n, R)`` int32, numbers of documents; :data:`ABSENT` after a row's last neighbour.
    """

    table: Numbers

    def __len__(self) -> int:
        return len(self.table)

    def of(self, document: int) -> Numbers:
        """Return one document's neighbours, ``(m,)``, nearest first."""
        row: Numbers = self.table[document]
        neighbours: Numbers = row[row != ABSENT]
        return neighbours

    @property
    def degrees(self) -> NDArray[np.intp]:
        """Return the number of each document's neighbours, ``(n,)``."""
        degrees: NDArray[np.intp] = np.sum(self.table != ABSENT, axis=1, dtype=np.intp)
        return degrees
