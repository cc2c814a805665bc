"""Python's collections of garbage in a process that serves: few, and of requests only."""

import gc

_NEW_OBJECTS = 100_000  # containers between two collections; a window of 10,000 hits makes some 60,000
_FORMER = gc.get_threshold()
_settled = False


def settle() -> None:
    """Keep what has been loaded out of every later collection, and make collections rarer.

    A full collection of what is loaded would hold requests for 400 ms. At Python's own threshold a window of 10,000
    hits causes seventy collections, which take a sixth of the event loop's time for it.

    Nothing changes in a process whose objects are frozen already, by another gateway in it or by its own program.
    """
    global _settled
    if gc.get_freeze_count():
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *_FORMER[1:])
    _settled = True


def restore() -> None:
    """Undo what :func:`settle` has done in this process."""
    global _settled
    if _settled:
        gc.unfreeze()
        gc.set_threshold(*_FORMER)
        _settled = False
