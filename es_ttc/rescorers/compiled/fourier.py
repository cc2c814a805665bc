"""Fourier transforms of many signals side by side, compiled, for the inside of other compiled loops.

numpy's transforms are as quick, but every call takes and gives up the interpreter's lock.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

compiled: Callable[[F], F] = numba.njit(nogil=True, error_model="numpy", cache=True)
"""Compiles a function. Every operation is rounded as it is written, so that a number does not depend on whether it was
computed alone or beside others: equal documents have equal scores."""

_HALF = np.float32(0.5)
_HALF_ROOT_3 = np.float32(np.sqrt(0.75))


@compiled
def transform(buffers: Any, now: int, size: int, lanes: int, twiddles: Any, sign: Any) -> int:
    """Transform complex signals by Stockham's method: step by step from one pair of buffers into the other.

    Args:
        buffers: ``(4, size * lanes)`` or longer, float32: two pairs of real and imaginary parts. Element ``t`` of
            signal ``j`` stands at ``t * lanes + j``.
        now: Which pair holds the signals: 0 the first, 2 the second. The other is overwritten.
        size: A power of two, or three times one.
        lanes: The number of signals.
        twiddles: ``(2, size)`` float32, cosine and sine of ``2 pi t / size``.
        sign: -1 for the transform, 1 for its inverse without the factor ``1 / size``.

    Returns:
        Which pair holds the outcome, 0 or 2.
    """
    left, wide, step = size, lanes, 1
    while left > 1:
        a_real, a_imag, b_real, b_imag = buffers[now], buffers[now + 1], buffers[2 - now], buffers[3 - now]
        radix = 3 if left % 3 == 0 else 2
        part = left // radix
        for t in range(part):
            first, second, to = t * wide, (t + part) * wide, radix * t * wide
            cosine, sine = twiddles[0, t * step], sign * twiddles[1, t * step]
            r0, r1 = a_real[first : first + wide], a_real[second : second + wide]
            i0, i1 = a_imag[first : first + wide], a_imag[second : second + wide]
            if radix == 2:
                _add(r0, r1, b_real[to : to + wide])
                _add(i0, i1, b_imag[to : to + wide])
                to += wide
                _turn(r0, r1, i0, i1, cosine, -sine, b_real[to : to + wide])
                _turn(r0, r1, i0, i1, sine, cosine, b_imag[to : to + wide])
            else:
                third = second + part * wide
                cosine_2, sine_2 = twiddles[0, 2 * t * step], sign * twiddles[1, 2 * t * step]
                r2, i2 = a_real[third : third + wide], a_imag[third : third + wide]
                _add_3(r0, r1, r2, b_real[to : to + wide])
                _add_3(i0, i1, i2, b_imag[to : to + wide])
                to += wide
                over = sign * _HALF_ROOT_3
                _turn_3(r0, r1, r2, i0, i1, i2, cosine, -sine, over, b_real[to : to + wide])
                _turn_3(r0, r1, r2, i0, i1, i2, sine, cosine, over, b_imag[to : to + wide])
                to += wide
                _turn_3(r0, r1, r2, i0, i1, i2, cosine_2, -sine_2, -over, b_real[to : to + wide])
                _turn_3(r0, r1, r2, i0, i1, i2, sine_2, cosine_2, -over, b_imag[to : to + wide])
        now, left, wide, step = 2 - now, part, wide * radix, step * radix
    return now


# One output each: of more arrays at a time the compiler does not find out that none overlaps another, and leaves the
# loop as it is, a number at a time.


@compiled
def _add(a: Any, b: Any, out: Any) -> None:
    for q in range(len(out)):
        out[q] = a[q] + b[q]


@compiled
def _turn(a: Any, b: Any, c: Any, d: Any, of_first: Any, of_second: Any, out: Any) -> None:
    for q in range(len(out)):
        out[q] = of_first * (a[q] - b[q]) + of_second * (c[q] - d[q])


@compiled
def _add_3(a: Any, b: Any, c: Any, out: Any) -> None:
    for q in range(len(out)):
        out[q] = a[q] + b[q] + c[q]


@compiled
def _turn_3(
    r0: Any, r1: Any, r2: Any, i0: Any, i1: Any, i2: Any, of_real: Any, of_imag: Any, over: Any, out: Any
) -> None:
    for q in range(len(out)):
        real = r0[q] - _HALF * (r1[q] + r2[q]) - over * (i1[q] - i2[q])
        imag = i0[q] - _HALF * (i1[q] + i2[q]) + over * (r1[q] - r2[q])
        out[q] = of_real * real + of_imag * imag
