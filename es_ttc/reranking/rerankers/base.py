"""What a reranker is: something slow or dear that reads a query and texts, and gives scores or an order.

A package adds a kind of reranker by naming its class in the entry-point group ``es_ttc.rerankers``, as es-ttc itself
does::

    [project.entry-points."es_ttc.rerankers"]
    mine = "my_package.mine:MyKind"

Whoever runs the gateway gives rerankers of that kind names and settings (``[rerankers.NAME]`` in ``es-ttc.toml``, with
``kind = "mine"``); a request names one, and never says where it is or what its key is. A reranker that is paid by
tokens tells what an answer took (:func:`es_ttc.reranking.rerankers.tell`): the search's answer shows it, and
``max_tokens`` holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from es_ttc.errors import EsTtcError


class RerankerError(EsTtcError):
    """A reranker failed, was late, or answered with something that is no answer."""

    status = 503
    type = "ttc_reranker_exception"


@dataclass(frozen=True, slots=True)
class Passage:
    """A document as a reranker reads it.

    Attributes:
        hash: Stands for the text: passages of one hash have one text.
        text: What is read.
    """

    hash: str
    text: str


class RerankerSettings(BaseModel):
    """What can be set of every reranker; kinds add what they need."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_ms: int = Field(10_000, gt=0, description="What one call may take, its repetitions included, in ms.")
    batch: int = Field(16, ge=1, le=1000, description="Documents of one call, where each is scored by itself.")
    at_once: int = Field(4, ge=1, le=256, description="Calls at the same time, of all searches together.")
    max_characters: int = Field(4000, ge=1, le=1_000_000, description="Characters that are read of one document.")


class _Reranker(Protocol):
    """What rerankers of both sorts have.

    Attributes:
        identity: All that its answers depend on beside query and texts (kind, model, revision, prompt): answers are
            kept by it.
        settings: How it is called.
    """

    identity: str
    settings: RerankerSettings

    async def close(self) -> None:
        """Let go of connections and models."""
        ...


@runtime_checkable
class PointwiseReranker(_Reranker, Protocol):
    """Scores each text by itself."""

    async def scores(self, query: str, passages: Sequence[Passage]) -> Sequence[float]:
        """Return one finite score a passage, greater is better.

        Called with ``settings.batch`` passages at most, cut to ``settings.max_characters``, under a timeout. It may
        raise anything; nothing is repeated by the caller.
        """
        ...


@runtime_checkable
class ListwiseReranker(_Reranker, Protocol):
    """Puts a few texts in order."""

    async def order(self, query: str, passages: Sequence[Passage]) -> Sequence[int]:
        """Return the positions of the passages, best first.

        What is missing keeps its order behind the rest, repeated and foreign positions are passed over. It is called
        as :meth:`PointwiseReranker.scores` is, with a request's window of passages.
        """
        ...


Reranker = PointwiseReranker | ListwiseReranker


@runtime_checkable
class Kind(Protocol):
    """A kind of reranker, from which settings make one.

    Attributes:
        name: Its name in the settings' ``kind``.
        Settings: The model that validates the rest of the settings; a key's field is a ``SecretStr``.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[RerankerSettings]]

    def make(self, settings: Any) -> Reranker:
        """Return a reranker; models are loaded and connections opened at the first call, not here.

        Raises:
            ConfigurationError: A package is missing, or the settings do not go together.
        """
        ...
