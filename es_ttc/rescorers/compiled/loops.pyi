"""The extension module that `hatch_build.py` compiles from `source/`."""

from typing import Any

from numpy.typing import NDArray

_Buffer = bytes | bytearray | NDArray[Any]  # numpy's arrays are typed as buffers from Python 3.12 on

def builds() -> tuple[str, ...]:
    """Return the names of the builds that this processor runs, the quickest last."""

def use(build: str, /) -> None:
    """Compute with a build from now on.

    Raises:
        ValueError: This processor does not run it, or there is none of that name.
    """

def smoothed_lengths(
    rows: _Buffer, spectra: _Buffer, plan: _Buffer, out: _Buffer, room: _Buffer, dims: int, scales: int, size: int, /
) -> int:
    """Write the lengths of a document's smoothed rows, where the room is large enough to compute in.

    Args:
        rows: ``(n, dims)`` float32, the token vectors.
        spectra: ``(scales, size // 2 + 1)`` float32, those of the kernels.
        plan: That of :func:`es_ttc.rescorers.compiled.frequencies.transform_plan`; its contents are not checked.
        out: ``(scales, n)`` float32, written.
        room: Memory to compute in.
        dims: The number of components.
        scales: The number of kernels.
        size: The size of the transforms.

    Returns:
        The bytes of room that are needed; nothing is written where there are fewer.

    Raises:
        ValueError: The sizes of the buffers do not fit together.
    """

def greatest_cosines(
    documents: _Buffer,
    queries: _Buffer,
    out: _Buffer,
    room: _Buffer,
    dims: int,
    plain: int,
    smoothing: int,
    identity: bool,
    mean: bool,
    floor: float,
    scales: int,
    /,
) -> int:
    """Write the greatest cosines of documents with query vectors, where the room is large enough to compute in.

    Args:
        documents: Rows of :class:`es_ttc.rescorers.compiled.window.Table`, k of them, in the order of their lengths.
            What their addresses lead to is not checked.
        queries: ``(r, dims)`` float32.
        out: ``(k, scales, r)`` float32, written.
        room: Memory to compute in.
        dims: The number of components.
        plain: How many of the query vectors, the last ones, are compared with the tokens themselves alone.
        smoothing: The number of finite scales above 1.
        identity: Whether the tokens themselves count for the others.
        mean: Whether the mean of all tokens counts.
        floor: Least length to divide by.
        scales: 1 for the greatest over all scales, otherwise how many there are.

    Returns:
        The bytes of room that are needed; nothing is written where there are fewer.

    Raises:
        ValueError: The sizes of the buffers do not fit together.
    """
