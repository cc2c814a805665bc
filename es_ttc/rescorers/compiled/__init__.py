"""Loops in C for what every spectral and MaxSim query does to every token vector of a window.

Installing es-ttc compiles them where there is a C compiler, and its wheels bring them along; without them the same
scores come from numpy. ``window`` turns documents into what the loops read, and ``source/greatest.h`` is one call for
them, which runs without the interpreter's lock: inner products (``products.h``; ``tiles.h`` for many query vectors) and
convolutions (``smoothing.h``; ``transform.h``, with the plans of ``frequencies``). ``lengths.h`` computes the norms
that are stored at indexing time. The extension has a build for each kind of processor, and takes the
quickest one that the processor runs. The variable ``ES_TTC_COMPILED=false`` switches them off in a process.
"""

import os

try:
    from es_ttc.rescorers.compiled import loops  # noqa: F401
except ImportError:
    _AVAILABLE = False
else:
    _AVAILABLE = True
_enabled = _AVAILABLE and os.environ.get("ES_TTC_COMPILED", "").lower() not in ("0", "false", "no", "off")


def available() -> bool:
    """Whether the loops were compiled when es-ttc was installed."""
    return _AVAILABLE


def enabled() -> bool:
    """Whether scores come from the loops: by default they do where the loops are available."""
    return _enabled


def enable(wanted: bool = True) -> bool:
    """Have scores come from the loops, where they are available, or from numpy; return whether they do."""
    global _enabled
    _enabled = wanted and _AVAILABLE
    return _enabled
