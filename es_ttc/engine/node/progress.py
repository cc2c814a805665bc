"""Progress of downloading or starting a node."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one step.

    Attributes:
        stage: ``fetch`` counts bytes, ``start`` counts seconds.
        done: Amount done.
        total: Total: all bytes, or the timeout in seconds.
    """

    stage: Literal["fetch", "start"]
    done: float
    total: float
    detail: str


ProgressCallback = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """Ignore the progress."""
