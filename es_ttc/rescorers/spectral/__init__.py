"""Spectral Retrieval: token vectors read at several widths (Morandi, arXiv 2605.24764).

From the formula to the rescorer: ``smoothing`` (the sinc kernels, batched convolution), ``norms`` (what ingest stores),
``cosines`` (a whole window), ``aggregation``, ``evidence`` (what ``detail`` shows), ``passages``, ``rescorer``.
"""

from es_ttc.rescorers.spectral.norms import scale_norms
from es_ttc.rescorers.spectral.params import DEFAULT_SCALES, SpectralParams
from es_ttc.rescorers.spectral.rescorer import SpectralRescorer

__all__ = ["DEFAULT_SCALES", "SpectralParams", "SpectralRescorer", "scale_norms"]
