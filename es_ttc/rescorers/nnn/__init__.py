"""NNN decoding: choose documents as a set, by a sparse non-negative reconstruction of the query."""

from es_ttc.rescorers.nnn.active_set import Solution, solve, solve_batch
from es_ttc.rescorers.nnn.dictionary import Dictionary
from es_ttc.rescorers.nnn.objective import Penalty
from es_ttc.rescorers.nnn.path import select
from es_ttc.rescorers.nnn.rescorer import NnnParams, NnnRescorer

__all__ = ["Dictionary", "NnnParams", "NnnRescorer", "Penalty", "Solution", "select", "solve", "solve_batch"]
