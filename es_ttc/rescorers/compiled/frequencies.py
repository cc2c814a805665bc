"""Where the compiled transforms leave their frequencies, and what transforms of one size read."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32


class HalfFrequencies(NamedTuple):
    """The frequencies 0 to size / 2 in the order of their places, with these and the places of their opposites."""

    frequencies: NDArray[np.int64]
    places: NDArray[np.int64]
    mirrors: NDArray[np.int64]


@lru_cache(maxsize=64)
def in_frequency(size: int) -> NDArray[np.int64]:
    """Return the order in which ``source/transform.h`` (radix 3, then 4, then 2) leaves a transform's frequencies."""
    if size == 1:
        return np.zeros(1, dtype=np.int64)
    radix = next(radix for radix in (3, 4, 2) if size % radix == 0)
    return (radix * in_frequency(size // radix) + np.arange(radix)[:, None]).reshape(-1)


@lru_cache(maxsize=64)
def half_frequencies(size: int) -> HalfFrequencies:
    """Return the half of a transform's frequencies that tells all of a real signal's."""
    order = in_frequency(size)
    places = np.flatnonzero(order <= size // 2)
    place_of = np.argsort(order)
    return HalfFrequencies(order[places], places, place_of[-order[places] % size])


@lru_cache(maxsize=64)
def transform_plan(size: int) -> Float32:
    """Return what transforms of a size read, packed as ``source/transform.h`` expects it."""
    half = half_frequencies(size)
    angles = 2 * np.pi * np.arange(size) / size
    half_angles = np.pi * half.frequencies / size
    numbers = [np.cos(angles), np.sin(angles), np.cos(half_angles), np.sin(half_angles)]
    places = np.concatenate((half.places, half.mirrors)).astype(np.int32)
    return np.concatenate((*numbers, places.view(np.float32)), dtype=np.float32, casting="same_kind")
