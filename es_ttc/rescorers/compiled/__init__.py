"""Loops that numba compiles to machine code, where it is installed (``pip install 'es-ttc[fast]'``).

They take the place of numpy for the one thing that every spectral and MaxSim query does to every token vector of a
window. Whoever serves queries calls :func:`prepare` once; until then, and wherever numba is missing, the same scores
come from numpy. ``window`` turns documents into what the loops read, ``loops`` is one call for a window's documents: of
their tokens' inner products (``products``; ``late`` in ``tiles``, for many query vectors) and their transforms
(``fourier``).
"""

import threading
from importlib.util import find_spec

import numpy as np

from es_ttc.vectors.tokens import ScaleNorms, TokenVectors

_lock = threading.Lock()
_prepared = False


def available() -> bool:
    """Whether numba is installed; it is not imported."""
    return find_spec("numba") is not None


def prepared() -> bool:
    """Whether the loops are compiled and used."""
    return _prepared


def prepare() -> bool:
    """Compile the loops, or read what an earlier process compiled, and use them from now on.

    Compiling takes some seconds and is kept beside the modules (or where ``NUMBA_CACHE_DIR`` says); reading takes
    about one, most of it numba's import.

    Returns:
        Whether there is something to use: False where numba is not installed.
    """
    global _prepared
    if not available():
        return False
    with _lock:
        if not _prepared:
            _try_all()
            _prepared = True
    return True


def disuse() -> None:
    """Leave the loops alone until :func:`prepare` is called again."""
    global _prepared
    with _lock:
        _prepared = False


def _try_all() -> None:
    """Call the loops with every kind of token vectors, so that no query waits for a compiler."""
    from es_ttc.rescorers.compiled import window

    vectors = np.ones((6, 2), dtype=np.float32)  # one to be smoothed, and enough for tiles
    kinds: tuple[TokenVectors, ...] = (
        TokenVectors(np.ones((2, 2), dtype=np.float32)),
        TokenVectors(np.ones((2, 2), dtype=np.float16)),
        TokenVectors(np.ones((2, 2), dtype=np.int8), np.ones(2, dtype=np.float32)),
    )
    norms, spectra = ScaleNorms((2.0,), np.ones((1, 2), dtype=np.float32)), np.ones((1, 2, 4), dtype=np.float32)
    out = np.empty((1, 1, 6), dtype=np.float32)
    for tokens in kinds:
        table = window.Table([tokens], [norms], norms.scales, lambda *_: norms.values, lambda _: spectra)
        window.greatest_cosines(
            table,
            slice(0, 1),
            vectors,
            window.tiled(vectors, 5),
            out,
            plain=5,
            identity=True,
            smoothing=1,
            mean=False,
            floor=np.float32(1),
        )
