"""Values that are made once for each engine, though tests ask for one engine after the other.

A fixture with a scope of ``session`` that depends on `engine_url` is made anew whenever the product changes, which it
does within each file; one that only looks something up here costs nothing then.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class PerEngine(Generic[T]):
    """One thing for each engine, made when it is first asked for. As a context manager it ends them all.

    Args:
        make: Given an engine's URL, what is entered for it.
    """

    def __init__(self, make: Callable[[str], AbstractContextManager[T]]) -> None:
        self._make = make
        self._made: dict[str, T] = {}
        self._stack = ExitStack()

    def of(self, engine: str) -> T:
        """Return the one of an engine."""
        if engine not in self._made:
            self._made[engine] = self._stack.enter_context(self._make(engine))
        return self._made[engine]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
