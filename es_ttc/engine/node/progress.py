"""How long work on a node tells what it is doing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of fetching or starting a node.

    Attributes:
        stage: ``fetch`` counts bytes, ``start`` counts seconds.
        done: How much is done.
        total: Of how much: all bytes, or the seconds after which starting is given up.
        detail: What is being done, for people.
    """

    stage: Literal["fetch", "start"]
    done: float
    total: float
    detail: str


ProgressCallback = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """Take no notice."""
