"""What the compiled loops read of a document: a row of addresses, and the arrays behind them."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from es_ttc.rescorers.compiled.fourier import compiled

_Generates = Callable[..., Any]
summing: Callable[[_Generates], _Generates] = numba.njit(
    nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"}, cache=True
)
"""Compiles a function whose sums may be added up in another order, as BLAS does; always the same one for a length."""
generated: Callable[[_Generates], _Generates] = intrinsic
"""Makes a function of instructions for the compiler, for what Python cannot say."""

VALUES, FACTORS, NORMS, SPECTRA, TWIDDLES, LENGTH, SIZE, KIND = range(8)
"""Columns of a table of documents, int64: the addresses of the token vectors, the factors of int8 rows, the norms, the
spectra of the kernels and the twiddles of the transform (0 where there is none), then the number of tokens, the size of
the transform, and what the vectors are made of."""
COLUMNS = 8

FLOAT32, FLOAT16, INT8 = range(3)

REBIAS = np.float32(2.0**112)  # see es_ttc/vectors/quantise.py


@generated
def pointer(_typing: Any, _address: Any) -> Any:
    """Return the pointer to an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@generated
def moved(_typing: Any, _half: Any) -> Any:
    """Return 2**-112 of a finite float16, the float32 that its bits are when they are moved to their places there."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.shl(builder.sext(arguments[0], word), word(13))  # the sign stands at the top
        return builder.bitcast(builder.and_(bits, word(-0x70000001)), ir.FloatType())  # sign, exponent, mantissa

    return types.float32(types.int16), generate


@compiled
def floats(start: int, size: int) -> Any:
    """Return the float32 values at an address."""
    return numba.carray(pointer(start), (size,), np.float32)


@compiled
def address(array: Any) -> Any:
    """Return where an array begins."""
    return np.int64(array.ctypes.data)
