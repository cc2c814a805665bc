"""Problems of every kind that the solver meets, and a slow literal solver to hold it to."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from es_ttc.rescorers.nnn.dictionary import Dictionary
from es_ttc.rescorers.nnn.objective import Penalty, Rows
from es_ttc.vectors.tokens import Float64

KINDS = ("general", "duplicates", "collinear", "alike", "near-duplicates", "lattice", "axes", "opposites")


@dataclass(frozen=True)
class Problem:
    rows: Rows
    query: Rows
    penalty: Penalty

    @property
    def dictionary(self) -> Dictionary:
        return Dictionary.of(self.rows)

    @property
    def scale(self) -> float:
        return max(1.0, float(np.linalg.norm(self.query)))


def unit(matrix: Float64) -> Float64:
    """Rows of length 1; zero rows stay."""
    lengths = np.linalg.norm(matrix, axis=-1, keepdims=True)
    rows: Float64 = np.divide(matrix, lengths, out=np.zeros_like(matrix), where=lengths > 0)
    return rows


def rows_of(kind: str, n: int, d: int, random: np.random.Generator) -> Float64:
    normal = random.standard_normal((n, d))
    match kind:
        case "general":
            return unit(normal)
        case "duplicates":
            return unit(normal[random.integers(0, n, n)])
        case "collinear":
            basis = min(2, d)
            return unit(normal[:, :basis] @ random.standard_normal((basis, d)))
        case "alike":
            return unit(np.abs(normal) + 2)
        case "near-duplicates":
            return unit(normal[random.integers(0, max(1, n // 5), n)] + 1e-8 * random.standard_normal((n, d)))
        case "lattice":
            return unit(random.integers(-1, 2, (n, d)).astype(np.float64))
        case "axes":
            return unit(random.integers(0, 2, (n, d)).astype(np.float64))
        case "opposites":
            return unit(np.concatenate((normal, -normal)))
    raise ValueError(kind)


def problem_of(seed: int, *, kind: str | None = None, most: int = 60) -> Problem:
    """A problem by number: n from 1 to 59 (twice that for opposites), d from 1 to 24, all corners of l1 and l2."""
    random = np.random.default_rng(seed)
    n, d = int(random.integers(1, most)), int(random.integers(1, 25))
    kind = kind or KINDS[seed % len(KINDS)]
    rows = rows_of(kind, n, d, random)
    rows[random.random(len(rows)) < random.choice([0, 0, 0.2])] = 0
    among = rows[random.integers(0, len(rows), 3)].sum(axis=0)
    query = random.choice([0, 1, 1, 1]) * (random.standard_normal(d) if random.random() < 0.5 else among)
    penalty = Penalty(float(random.choice([0, 0, 1e-3, 0.05, 0.3, 1])), float(random.choice([0, 0, 0, 1e-6, 0.1, 2])))
    # float32 would leave collinear rows independent by rounding alone: without a penalty that is another problem.
    if random.random() < 0.7 and not (kind == "collinear" and penalty.l1 + penalty.l2 == 0):
        return Problem(rows.astype(np.float32), query.astype(np.float32), penalty)
    return Problem(rows, query, penalty)


problems = st.builds(problem_of, st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS))


def projected_gradient(problem: Problem, *, l2: float, steps: int = 200_000) -> Float64:
    """Solve a problem by its definition: downhill by 1 / L, negative coefficients cut, until nothing moves."""
    rows, query = problem.rows.astype(np.float64), problem.query.astype(np.float64)
    size = float(np.linalg.norm(rows, 2)) ** 2 + l2
    x = np.zeros(len(rows))
    for _ in range(steps):
        slope = rows @ (rows.T @ x - query) + problem.penalty.l1 + l2 * x
        following = np.maximum(x - slope / size, 0)
        if np.max(np.abs(following - x), initial=0.0) < 1e-14:
            break
        x = following
    return x
