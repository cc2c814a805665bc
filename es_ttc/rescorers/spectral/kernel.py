"""The sinc kernels of Spectral Retrieval, section III-B."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

IDENTITY = 1.0
"""The narrow endpoint: the identity operator, not a sampled kernel (which is no delta for an even length)."""

MEAN = math.inf
"""The wide endpoint L = infinity: every position carries the mean of all tokens."""


def sinc_kernel(length: int, scale: float) -> Float64:
    """Return ``k_L``, ``(length,)`` float64: ``sinc((t - c) / L)`` about the centre ``c = (length - 1) / 2``, sum 1.

    Args:
        length: The document's number of tokens N, 1 or more; the kernel is as long as the document.
        scale: The scale L in tokens, finite, 1 or more: the distance from the centre to the first zero.
    """
    offsets = np.arange(length) - (length - 1) / 2
    kernel = np.sinc(offsets / scale)
    normalised: Float64 = kernel / kernel.sum()
    return normalised


def kernel_bank(length: int, scales: Sequence[float]) -> Float64:
    """Return the kernels of several scales, ``(s, length)`` float64."""
    return np.stack([sinc_kernel(length, scale) for scale in scales])


def same_start(length: int) -> int:
    """Return which element of the full convolution of two signals of this length is the first of the ``same`` part.

    This is numpy's (and everyone's) ``mode="same"``: signals are taken as zero outside the document. For an even
    length the kernel's centre falls half a token before the position that it is reported at.
    """
    return (length - 1) // 2


def is_smoothing(scale: float) -> bool:
    """Tell a scale that needs a convolution from the two endpoints that do not."""
    return scale not in (IDENTITY, MEAN)
