"""The contract of a reranker: a slow or expensive component that reads a query and texts and returns scores or order.

A package adds a kind of reranker by naming its class in the entry-point group ``es_ttc.rerankers``, as es-ttc itself
does::

    [project.entry-points."es_ttc.rerankers"]
    mine = "my_package.mine:MyKind"

The operator of the gateway gives rerankers of that kind names and settings (``[rerankers.NAME]`` in ``es-ttc.toml``,
with ``kind = "mine"``). A request names one, and contains neither its address nor its key. A reranker that is paid by
tokens reports what an answer used (:func:`es_ttc.reranking.rerankers.tell`): the response contains it, and
``max_tokens`` limits it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from es_ttc.errors import EsTtcError


class RerankerError(EsTtcError):
    """A reranker failed, was late, or returned an invalid answer."""

    status = 503
    type = "ttc_reranker_exception"


@dataclass(frozen=True, slots=True)
class Passage:
    """The text of a document for a reranker.

    Attributes:
        hash: Identifies the text: passages with the same hash have the same text.
        text: The text.
    """

    hash: str
    text: str


class RerankerSettings(BaseModel):
    """Settings that all rerankers share; kinds add their own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_ms: int = Field(10_000, gt=0, description="Timeout of one call, including its repetitions, in ms.")
    batch: int = Field(16, ge=1, le=1000, description="Maximum number of documents per call.")
    at_once: int = Field(4, ge=1, le=256, description="Maximum number of concurrent calls, of all searches together.")
    max_characters: int = Field(4000, ge=1, le=1_000_000, description="Maximum number of characters per document.")


class _Reranker(Protocol):
    """The attributes and methods that all rerankers share."""

    # Everything that its answers depend on except query and texts (kind, model, revision, prompt); answers are cached
    # under it
    identity: str
    settings: RerankerSettings

    async def close(self) -> None:
        """Close connections and release models."""


@runtime_checkable
class PointwiseReranker(_Reranker, Protocol):
    """Scores each text independently."""

    async def scores(self, query: str, passages: Sequence[Passage]) -> Sequence[float]:
        """Return one finite score for each passage, greater is better.

        It receives at most ``settings.batch`` passages, cut to ``settings.max_characters``, and has a timeout. It may
        raise any exception; the caller does not repeat the call.
        """


@runtime_checkable
class ListwiseReranker(_Reranker, Protocol):
    """Puts a few texts in order."""

    async def order(self, query: str, passages: Sequence[Passage]) -> Sequence[int]:
        """Return the positions of the passages, best first.

        Missing passages follow in their previous order; repeated and unknown positions are skipped. It is called as
        :meth:`PointwiseReranker.scores` is, with one window of passages.
        """


Reranker = PointwiseReranker | ListwiseReranker


@runtime_checkable
class RerankerKind(Protocol):
    """A kind of reranker, which makes rerankers from settings.

    Attributes:
        name: Its name in the settings' ``kind``.
        Settings: The model that validates the rest of the settings; a key must be a ``SecretStr``.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[RerankerSettings]]

    def make(self, settings: Any) -> Reranker:
        """Return a reranker. Models are loaded and connections opened by its first call, not here.

        Raises:
            ConfigurationError: A package is missing, or the settings contradict each other.
        """
