"""The sinc kernels (section III-B), and convolution with a bank of them, for documents of many lengths at once.

Each document has kernels of its own length. Lengths share a few transform sizes, so that a window of ragged documents
takes a handful of batched Fourier transforms; the kernels' spectra are kept between calls.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.compiled.frequencies import half_frequencies
from es_ttc.rescorers.threads import Scratch
from es_ttc.vectors.tokens import Float32, Float64

IDENTITY = 1.0  # the narrow endpoint: no sampled kernel, which is no delta for an even length

MEAN = math.inf  # the wide endpoint L = infinity: every position carries the mean of all tokens


def sinc_kernel(length: int, scale: float) -> Float64:
    """Return ``k_L``, ``(length,)`` float64: ``sinc((t - c) / L)`` about the centre ``c = (length - 1) / 2``, sum 1."""
    offsets = np.arange(length) - (length - 1) / 2
    kernel = np.sinc(offsets / scale)
    normalised: Float64 = kernel / kernel.sum()
    return normalised


def kernel_bank(length: int, scales: Sequence[float]) -> Float64:
    """Return the kernels of several scales, ``(s, length)`` float64."""
    return np.stack([sinc_kernel(length, scale) for scale in scales])


def same_start(length: int) -> int:
    """Return which element of the full convolution of two signals of this length is the first of numpy's ``same`` part.

    For an even length the kernel's centre falls half a token before the position that it is reported at.
    """
    return (length - 1) // 2


def is_smoothing(scale: float) -> bool:
    """Tell a scale that needs a convolution from the two endpoints that do not."""
    return scale not in (IDENTITY, MEAN)


Complex64 = NDArray[np.complex64]

_SIZE_STEPS = (2, 3)  # transform sizes are these times a power of two: at most half too long


@lru_cache(maxsize=4096)
def transform_size(length: int) -> int:
    """Return the transform size for documents of a length, some 1.5 N: wrapping never reaches the ``same`` part."""
    needed = 2 * length - 1 - same_start(length)
    power = 1
    while True:
        for step in _SIZE_STEPS:
            if step * power >= needed:
                return step * power
        power *= 2


def smooth(signals: Float32, lengths: Sequence[int], scales: tuple[float, ...], scratch: Scratch) -> Float32:
    """Convolve the signals of several documents with the kernels of their own lengths (``same``, zeros outside).

    Args:
        signals: ``(b, r, size)`` float32, zero from each document's length on; ``size`` is even and no less than the
            :func:`transform_size` of any length.
        lengths: The documents' numbers of tokens. Equal ones are cheapest side by side.

    Returns:
        ``(b, r, s, size)`` float32, valid until the thread's next call with the same scratch.
    """
    documents, roles, size = signals.shape
    bins = size // 2 + 1
    spectra = scratch.array("spectra", (documents, roles, bins), np.complex64)
    np.fft.rfft(signals, axis=-1, out=spectra)
    product = scratch.array("product", (documents, roles, len(scales), bins), np.complex64)
    for length, rows in _runs(lengths):
        np.multiply(spectra[rows, :, None], kernel_spectra(length, scales, size), out=product[rows])
    smoothed = scratch.array("smoothed", (documents, roles, len(scales), size), np.float32)
    np.fft.irfft(product, size, axis=-1, out=smoothed)
    return smoothed


def _runs(lengths: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Yield each run of equal lengths with its place."""
    start = 0
    for length, run in groupby(lengths):
        stop = start + len(list(run))
        yield length, slice(start, stop)
        start = stop


def kernel_spectra(length: int, scales: tuple[float, ...], size: int) -> Complex64:
    """Return the spectra of a document length's kernels, ``(s, size // 2 + 1)`` complex64; kept for reuse."""
    return _kept.get((length, scales, size), _spectra)


def half_spectra(length: int, scales: tuple[float, ...], size: int) -> Float32:
    """Return the real spectra of a document length's centred kernels, ``(s, size // 2 + 1)``, over the size."""
    return _kept_halves.get((length, scales, size), _halves)


def _spectra(length: int, scales: tuple[float, ...], size: int) -> Complex64:
    return np.fft.rfft(_shifted_kernels(length, scales, size)).astype(np.complex64)


def _halves(length: int, scales: tuple[float, ...], size: int) -> Float32:
    spectra = np.fft.rfft(_shifted_kernels(length, scales, size))
    if length % 2 == 0:  # the centre is half a position after the first element
        spectra *= np.exp(1j * np.pi * np.arange(spectra.shape[1]) / size)
    return np.ascontiguousarray(spectra.real[:, half_frequencies(size).frequencies] / size, dtype=np.float32)


def _shifted_kernels(length: int, scales: tuple[float, ...], size: int) -> NDArray[np.float64]:
    """Return the kernels, shifted by the start of the `same` part: the convolution then begins with position 0."""
    shifted = np.zeros((len(scales), size))
    shifted[:, :length] = kernel_bank(length, scales)
    return np.roll(shifted, -same_start(length), axis=1)


_Key = tuple[int, tuple[float, ...], int]
A = TypeVar("A", bound=NDArray[Any])


class _SpectraCache(Generic[A]):
    """The spectra used last, up to a number of bytes. Threads may compute the same one twice; either is right."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._items: OrderedDict[_Key, A] = OrderedDict()

    def get(self, key: _Key, make: Callable[[int, tuple[float, ...], int], A]) -> A:
        with self._lock:
            item = self._items.get(key)
            if item is not None:
                self._items.move_to_end(key)
                return item
        made = make(*key)
        made.flags.writeable = False
        self._put(key, made)
        return made

    def _put(self, key: _Key, item: A) -> None:
        with self._lock:
            if key in self._items or item.nbytes > self._max_bytes:
                return
            self._items[key] = item
            self._bytes += item.nbytes
            while self._bytes > self._max_bytes:
                _, dropped = self._items.popitem(last=False)
                self._bytes -= dropped.nbytes


_kept: _SpectraCache[Complex64] = _SpectraCache(max_bytes=64 * 2**20)
_kept_halves: _SpectraCache[Float32] = _SpectraCache(max_bytes=64 * 2**20)
