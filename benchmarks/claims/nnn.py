"""The claims of NNN decoding. Its figures are for encoders trained on each collection; ours are frozen or adapters."""

from time import process_time

import numpy as np

from benchmarks.claims.model import Claim, Finding, Verdict, cited, measured, tested
from es_ttc.rescorers.nnn.objective import Penalty
from es_ttc.vectors.tokens import Float32
from tests.rescorers.nnn.fista import fista

_TOOLBANK = {  # C@5 of dense and NNN-Fix on NumpyBank, PandasBank, AWSBank: bge, MiniLM, distilbert
    "dense": (50.9, 14.1, 45.1, 45.3, 12.6, 40.2, 53.4, 15.7, 48.1),
    "MMR": (54.7, 15.0, 49.7, 47.8, 15.0, 46.1, 56.5, 17.8, 52.0),
    "COLT": (52.5, 13.5, 45.0, 44.9, 12.6, 40.7, 53.8, 15.7, 48.1),
    "NNN-Fix": (61.4, 20.3, 55.3, 57.2, 17.8, 52.7, 63.2, 21.8, 57.3),
}
_MULTIHOP_AT_3 = {"bge": (50.7, 50.2), "MiniLM": (56.0, 52.0), "distilbert": (60.0, 57.8)}


def _toolbank() -> Finding:
    gains = [ours - dense for ours, dense in zip(_TOOLBANK["NNN-Fix"], _TOOLBANK["dense"], strict=True)]
    losses = ", ".join(f"{name} {after - before:+.1f}" for name, (before, after) in _MULTIHOP_AT_3.items())
    figure = (
        f"in the paper's tables NNN-Fix gains {min(gains):.1f} to {max(gains):.1f} points of C@5 on ToolBank and "
        "loses "
        f'on MultiHop-RAG\'s C@3 ({losses}): "consistent" is too strong'
    )
    return Finding(Verdict.CONTRADICTED if min(gains) > 0 else Verdict.NOT, figure)


def _above_baselines() -> Finding:
    best = [max(pair) for pair in zip(_TOOLBANK["MMR"], _TOOLBANK["COLT"], strict=True)]
    least = min(ours - other for ours, other in zip(_TOOLBANK["NNN-Fix"], best, strict=True))
    figure = (
        f"in the paper's tables at least {least:.1f} points of C@5 above both on ToolBank; on ToolLens (bge, C@5) "
        "91.4 "
        "against MMR's 93.1 and COLT's 93.6"
    )
    return Finding(Verdict.PART if least > 0 else Verdict.NOT, figure)


_STEPS = 10
_LEAST_DOCUMENTS, _LEAST_DIMS = 100_000, 256
"""The least matrix, 102 MB, is outside the processor's caches: a smaller one would seem to grow faster."""
_FACTOR = 4
_LINEAR = 1.2
"""Greatest exponent that is called linear."""


def _cost() -> Finding:
    rng = np.random.default_rng(0)
    rows: Float32 = rng.standard_normal((_FACTOR * _LEAST_DOCUMENTS, _LEAST_DIMS), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    base = _seconds(rows[:_LEAST_DOCUMENTS])
    wider = rows.reshape(_LEAST_DOCUMENTS, _FACTOR * _LEAST_DIMS) / np.float32(np.sqrt(_FACTOR))
    documents, dims = (float(np.log(_seconds(more) / base) / np.log(_FACTOR)) for more in (rows, wider))
    figure = (
        f"{_STEPS} steps of FISTA, {_FACTOR} times as many documents or components: exponents {documents:.1f} and "
        f"{dims:.1f}, from {_LEAST_DOCUMENTS:,} x {_LEAST_DIMS} on; that one step ranks as dense retrieval, by "
        "`tests/rescorers/nnn/test_theory.py::test_one_step_of_fista_ranks_as_dense_retrieval`"
    )
    return Finding(Verdict.HOLDS if max(documents, dims) <= _LINEAR else Verdict.PART, figure)


def _seconds(rows: Float32, repeat: int = 5) -> float:
    """Return the least processor time of the steps."""
    times = []
    for _ in range(repeat):
        started = process_time()
        fista(rows, rows[:1], Penalty(0.1, 0.1), steps=_STEPS, bound=50.0)
        times.append(process_time() - started)
    return min(times)


CLAIMS: tuple[Claim, ...] = (
    tested(
        "N1",
        "Theorem 1: what dense retrieval finds, some penalty selects",
        "2.2",
        Verdict.HOLDS,
        "by a property test; the constants of the theorem were lost, a sufficient choice is tested",
        "rescorers/nnn/test_theory.py::test_theorem_1_what_dense_retrieval_finds_some_penalty_selects",
    ),
    tested(
        "N2",
        "Proposition 1: NNN finds a set that no dense ranking has in front",
        "2.2",
        Verdict.HOLDS,
        "on an example of ours; the paper's was lost",
        "rescorers/nnn/test_theory.py::test_proposition_1_dense_retrieval_fails_where_nnn_finds_both",
    ),
    tested(
        "N3",
        "Every solution meets the conditions (KKT), and is unique for l2 > 0",
        "2.3",
        Verdict.HOLDS,
        "certified for every solution; two solvers agree",
        "rescorers/nnn/test_active_set.py::test_every_solution_is_certified",
        "rescorers/nnn/test_active_set.py::test_with_l2_the_solution_is_unique_whoever_finds_it",
    ),
    measured(
        "N4", "Cost is linear in documents and components; one step from 0 ranks as dense retrieval", "2.4", _cost
    ),
    tested(
        "N5",
        "A few steps of FISTA give the solution's documents",
        "2.4",
        Verdict.NOT,
        "after a few steps documents have coefficients that the solution has not",
        "rescorers/nnn/test_theory.py::test_a_few_steps_of_fista_leave_documents_that_the_solution_has_not",
    ),
    measured("N6", "NNN-Fix gains consistently over dense retrieval, without training", "4", _toolbank, seconds=False),
    tested(
        "N7",
        "A near-duplicate of a selected document is kept out for small l2, let in for large",
        "2.3",
        Verdict.HOLDS,
        "by a property test",
        "rescorers/nnn/test_theory.py::test_a_near_duplicate_is_kept_out_by_small_l2_and_let_in_by_large",
    ),
    cited(
        "N8",
        "The gain over dense retrieval grows with the number of relevant documents",
        "Fig. 4",
        "results/nnn",
        Verdict.NOT,
        "frozen MiniLM, ToolLens: one relevant tool +.013, two -.021, three hardly ever complete",
        "those with two lose (**\N{MINUS SIGN}0.021**",
    ),
    cited(
        "N9",
        "Without l2 multi-hop questions collapse; without l1 PandasBank does",
        "4",
        "results/nnn",
        Verdict.NOT,
        "no clear effect with frozen encoders, HotpotQA C@5: L1-Fix -.010 and .000, L2-Fix -.040 and +.010",
        "| L1-Fix (l1 .2 to .3) |",
        "| L2-Fix (l2 1 to 3) |",
    ),
    cited(
        "N10",
        "NNN-Tr is above all baselines on every dataset and metric",
        "App. C",
        "results/training",
        Verdict.PART,
        "the paper's own table has a tie (MiniLM, MultiHop-RAG, C@5 82.7); on ToolLens here NNN-Tr is .018 above a "
        "swept COLT at C@5, level with dense (+.002), and below dense retrieval that is trained as long (-.006)",
        "NNN-Tr is above COLT (C@3 +.021, +.011 to +.030; C@5",
    ),
    measured("N11", "NNN-Fix is above COLT and MMR on ToolBank", "4", _above_baselines, seconds=False),
    cited(
        "N12",
        "A small number of FISTA steps is above dense retrieval already",
        "Fig. 3",
        "results/training",
        Verdict.NOT,
        "ToolLens, Comp@5 after 1, 2, 5 and 500 steps: .885, .887, .887, .886 on dense vectors; .894, .891, .884, .884 "
        "on NNN-Tr's",
        "A few steps gain up to .002 on dense vectors, and lose on NNN-Tr's.",
    ),
    cited(
        "N13",
        "One pair of penalties suffices for a collection",
        "5",
        "results/training",
        Verdict.PART,
        "a rule by query, learned on validation queries, is level with one pair (-.002 and .000 of Comp@5), and "
        "the oracle's choice by query is .024 and .030 above, so there is something to be had",
        "the rule is level with it, although the oracle is .024 and .030",
    ),
    cited(
        "N14",
        "Training makes the penalties matter less",
        "Fig. 2",
        "results/training",
        Verdict.PART,
        "Comp@5 over all pairs of a grid: .708 to .888 (deviation .040) with dense vectors, .741 to .894 (.034) with "
        "NNN-Tr's",
        "the worst pair is .741 in place of .708.",
    ),
    cited(
        "N15",
        "(ours) Parameters are tuned on train or validation queries, which the paper's ToolLens is not",
        "B.1",
        "results/training",
        Verdict.CONTRADICTED,
        "the paper tunes ToolLens on its test set; here on a seeded part of train",
        "are the best on validation queries, a seeded part of train",
    ),
    cited(
        "N16",
        "Untrained encoders gain on ToolLens",
        "4",
        "results/nnn",
        Verdict.NOT,
        "MiniLM: C@3 -.006, C@5 -.002",
        "NNN loses up to a point at 3 and nothing at 5",
    ),
)
