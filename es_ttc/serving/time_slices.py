"""Long work cut into short slices, so that others have their turn in between."""

from collections.abc import Iterator, Sequence


def slices(sizes: Sequence[float], *, most: int, weight: float) -> Iterator[slice]:
    """Yield slices of things that follow one another, as long as they may be, one thing or more each.

    Args:
        sizes: What each of them weighs.
        most: Things of a slice at most.
        weight: What a slice weighs at most, unless it is of one thing.
    """
    start, total = 0, 0.0
    for place, size in enumerate(sizes):
        if place > start and (place - start >= most or total + size > weight):
            yield slice(start, place)
            start, total = place, 0.0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))
