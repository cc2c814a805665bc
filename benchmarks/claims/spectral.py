"""The claims of Spectral Retrieval (arXiv 2605.24764v1)."""

import math
from functools import cache

import numpy as np

from benchmarks import spectral_claims as figures
from benchmarks import spectral_convolution as convolution
from benchmarks.claims.model import Claim, Finding, Verdict, cited, holds, measured, tested, unmeasured
from benchmarks.spectral_synthetic import GRID
from es_ttc.rescorers.spectral import DEFAULT_SCALES
from es_ttc.rescorers.spectral.smoothing import sinc_kernel

_SEED = 0
_SHOWN_LENGTHS = (128, 512, 1024, 4096)


@cache
def _recalls() -> figures.Recalls:
    return figures.measured_recalls(np.random.default_rng(_SEED))


def _of(claim: figures.Claim, otherwise: Verdict = Verdict.NOT) -> Finding:
    return holds(claim.verdict == "yes", claim.measured, otherwise)


def _random() -> np.random.Generator:
    return np.random.default_rng(_SEED)


def _all_negative() -> Finding:
    """Section III-E: a running maximum that starts at 0."""
    tokens = figures.unit(_random().standard_normal((20, 64)) + 3)
    score = figures.score(tokens, -figures.unit(tokens.mean(axis=0, keepdims=True)), DEFAULT_SCALES)
    return holds(score >= 0, f"a document whose cosines are all negative has a score of {score:.2f}, not 0")


def _kernel_sums() -> Finding:
    lengths, scales = (1, 2, 3, 10, 101, 1024, 8192), (1.5, 2, 3, 10, 30, 100, 1000)
    worst = max(abs(sinc_kernel(length, scale).sum() - 1) for length in lengths for scale in scales)
    return holds(
        worst < 1e-9, f"greatest distance of the sum from 1: {worst:.0e}, {len(lengths) * len(scales)} kernels"
    )


def _sampled_identity() -> Finding:
    odd, even = sinc_kernel(7, 1), sinc_kernel(6, 1)
    shown = ", ".join(f"{value:.3f}" for value in even)
    return holds(bool(np.allclose(even.max(), 1)), f"N = 7: a delta ({odd.max():.3f}); N = 6: {shown}", Verdict.PART)


def _repeated() -> Finding:
    random = _random()
    tokens = figures.unit(np.tile(random.standard_normal((10, 64)), (20, 1)))
    query = figures.unit(random.standard_normal((1, 64)))
    narrow, wide = (figures.score(tokens, query, (scale,)) for scale in (1.0, 30.0))
    mean = figures.mean_cosine(tokens, query)
    figure = f"a body of 10 tokens, 20 times: L = 1 {narrow:.3f}, L = 30 {wide:.3f}, mean {mean:.3f}"
    return holds(abs(narrow - mean) < 0.01, figure)


def _multiplications() -> Finding:
    outputs, kernels = 100 * 8 * 200 * 768, 100 * 8 * 200 * 200 * 768
    figure = f"{outputs:.1e} outputs of the convolution; with a kernel as long as the document {kernels:.1e} products"
    return Finding(Verdict.CONTRADICTED, f"{figure} (sections III-E and III-H differ)")


def _transforms() -> Finding:
    """Section III-H: for each N the product N L at which both forms take equally long, in the paper's form."""
    ratios, similarities = convolution.ratios(), convolution.of_similarities().values()
    products = {length: length * convolution.crossing(by_taps) for length, by_taps in ratios.items()}
    shown = ", ".join(_two_digits(products[length]) for length in _SHOWN_LENGTHS)
    figure = (
        f"all components by numpy: for N of {', '.join(map(str, _SHOWN_LENGTHS))} both are equal at N L of {shown}: "
        f"no one product; at N = 200, L = 31 the transforms take {1 / ratios[200][31]:.1f} of the direct time. "
        f"Ours (similarities, seven kernels): {1 / max(similarities):.2f} to {1 / min(similarities):.2f} of it"
    )
    return holds(all(8_000 <= product <= 32_000 for product in products.values()), figure)


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}" if math.isfinite(value) else "more than measured"


def _storage() -> Finding:
    terabytes = 50e6 * 200 * 768 * 2 / 1e12
    return holds(abs(terabytes - 15) < 0.5, f"{terabytes:.2f} TB")


def _grids() -> Finding:
    """Recall of planted spikes of one token does not depend on the scales beside 1, that of wide ones does."""
    narrow = _recalls().narrow[0.60]
    wide = _recalls().wide["independent"][10]
    figure = (
        f"spikes of one token at .60: L = 1 alone {narrow['maxsim']:.3f}, the whole grid {narrow['spectral']:.3f}; "
        "of "
        f"ten tokens at .45: L = 1 alone {wide['maxsim']:.3f}, the whole grid {wide['spectral']:.3f}"
    )
    alike = abs(narrow["maxsim"] - narrow["spectral"]) < 0.02
    return holds(
        alike and abs(wide["maxsim"] - wide["spectral"]) < 0.02, figure, Verdict.PART if alike else Verdict.NOT
    )


def _best_widths() -> Finding:
    parts, near = [], True
    for width, values in _recalls().wide["shared"].items():
        if width == 1:
            continue
        best = max(values[str(scale)] for scale in GRID[:-1])
        scales = [scale for scale in GRID[:-1] if values[str(scale)] == best]
        closest = min(scales, key=lambda scale: abs(math.log(scale / width)))
        parts.append(f"w {width}: L = {closest:g}")
        near &= 0.5 <= closest / width <= 2
    return holds(near, "; ".join(parts))


def _short_documents() -> Finding:
    """Section VI: the spread of the scales' scores from 5 tokens on, for short and for long documents."""
    random = _random()
    spreads = {}
    for length in (3, 5, 100):
        gaps = []
        for _ in range(100):
            tokens = figures.unit(random.standard_normal((length, 64)))
            query = figures.unit(random.standard_normal((1, 64)))
            scores = [figures.score(tokens, query, (float(scale),)) for scale in (10, 15, 20, 30)]
            gaps.append(max(abs(score - figures.mean_cosine(tokens, query)) for score in scores))
        spreads[length] = float(np.mean(gaps))
    figure = ", ".join(f"{length} tokens {spread:.3f}" for length, spread in spreads.items())
    verdict = Verdict.PART if spreads[3] < spreads[5] < spreads[100] else Verdict.NOT
    return Finding(verdict, f"mean distance from MeanCos, scales 10 to 30: {figure}")


def _noise_floor() -> Finding:
    random = _random()
    floors = {}
    for dims in (64, 768):
        greatest = []
        for _ in range(100):
            tokens = figures.unit(random.standard_normal((250, dims)))
            greatest.append(float((tokens @ figures.unit(random.standard_normal((1, dims)))[0]).max()))
        floors[dims] = float(np.mean(greatest))
    ratio = floors[768] / floors[64]
    figure = f"greatest of 250 random cosines: {floors[64]:.3f} at d 64, {floors[768]:.3f} at d 768, ratio {ratio:.2f}"
    return holds(ratio < 0.4, f"{figure} (sqrt(64 / 768) is .29)")


CLAIMS: tuple[Claim, ...] = (
    measured(
        "S1",
        "Score >= max(MaxSim, MeanCos), with both endpoints in the grid",
        "III-D",
        lambda: _of(figures.guarantee(_random())),
    ),
    measured(
        "S2",
        "The same with the default grid, 1 to 30",
        "III-C, III-D",
        lambda: _of(figures.default_grid(_random()), Verdict.CONTRADICTED),
    ),
    measured("S3", "As L grows the score becomes MeanCos", "III-D", lambda: _of(figures.wide_limit(_random()))),
    cited(
        "S4",
        "Table IV, LIMIT-small: dense .194, spectral .789",
        "VII",
        "results/spectral",
        Verdict.HOLDS,
        "dense .194, spectral .789, all eleven figures within .002",
        "| nDCG@10 | 0.194 | 0.194 | 0.797 | 0.789 | 0.789 |",
    ),
    measured(
        "S5",
        "Table II: one planted token is found above a threshold",
        "VI-C",
        lambda: _of(figures.table_ii(_recalls())),
    ),
    measured(
        "S6",
        "Table III: spikes of three tokens and more are found at .45",
        "VI-D",
        lambda: _of(figures.table_iii(_recalls()), Verdict.PART),
    ),
    measured(
        "S7",
        "Recall of the maximum over scales equals recall of the best scale",
        "VI, Fig. 4",
        lambda: _of(figures.best_scale(_recalls())),
    ),
    measured(
        "S8",
        "Smoothing is what finds single-token spikes",
        "VI-C, VI-E",
        lambda: _of(figures.narrowest_scale(_recalls()), Verdict.CONTRADICTED),
    ),
    measured(
        "S9", "(ours) Stored norms give the pseudocode's scores", "III-E", lambda: _of(figures.stored_norms(_random()))
    ),
    measured(
        "S10",
        "Worked example: the mean orders d2 > d3 > d1, L = 1 orders d1 > d2 > d3",
        "IV-F",
        lambda: _of(figures.worked_example(), Verdict.CONTRADICTED),
    ),
    measured("S11", "Pseudocode: the running maximum starts at 0", "III-E", _all_negative),
    measured("S12", "The kernel's weights sum to 1, with a positive denominator", "III-B", _kernel_sums),
    measured("S13", "L = 1 is the identity", "III-B", _sampled_identity),
    measured("S14", "Repeated content: spectral retrieval collapses onto the mean", "IX", _repeated),
    measured(
        "S15",
        "1.2e8 multiplications for 100 documents, 8 scales, 200 tokens, 768 components",
        "III-H",
        _multiplications,
        seconds=False,
    ),
    measured("S16", "50 million documents of 200 tokens in float16: 15 TB", "VIII", _storage, seconds=False),
    measured("S17", "FFT pays from N L of about 16,000, and not yet at N <= 200", "III-H", _transforms),
    unmeasured(
        "S18", "Tens of milliseconds on a GPU", "VIII", "no GPU was available, and the kernel here runs on processors"
    ),
    cited(
        "S19",
        "On a processor 37 times dense retrieval's time (1.84 s against 50 ms a query)",
        "VII-D",
        "results/speed",
        Verdict.NOT,
        "with stored norms 1.9 ms for 100 documents of 256 tokens, the pseudocode 3,198 ms: 1,672 times faster; "
        "through the gateway a search takes 8 to 11 ms longer than the engine's own",
        "| every component convolved (the paper's pseudocode) | 3,198 | 1 |",
        "| norms stored at ingest, compiled | 1.9 | 1,672 |",
        "| spectral, features in the gateway's memory |",
    ),
    cited(
        "S20",
        "float16 storage costs no measurable quality",
        "VIII",
        "results/storage",
        Verdict.HOLDS,
        "float16, int8 and int4 rank alike; int2 nearly",
        "int8 ranks like float16.",
    ),
    measured("S21", "Recall does not depend on the grid if it contains 1", "VII", _grids),
    tested(
        "S22",
        "A relevant document outside the first pass's K can never return",
        "IX",
        Verdict.HOLDS,
        "by construction; blend's candidates from kNN join the window for this reason",
        "serving/test_blend.py::test_candidates_join_the_window_of_other_methods_where_asked",
    ),
    measured("S23", "The best scale is about the width of the match", "VI", _best_widths),
    measured("S24", "In short documents all scales are about the mean", "IX", _short_documents),
    measured("S25", "The noise floor is lower with more components", "VI", _noise_floor),
)
