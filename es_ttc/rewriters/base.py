"""What a rewriter is: a declaration, one coroutine from a text to weighted terms, and a pure function to a query.

The slow half (``expand``: asks a model, counts documents) is remembered by the gateway and has a deadline; the other
half (``query``) is pure, and also makes the plain query that answers where there is no expansion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from es_ttc.enrichment.proposals.document_frequency import Frequencies
from es_ttc.enrichment.proposals.phrases import DroppedPhrase, Tokens
from es_ttc.llm import JsonSchema, Prompt
from es_ttc.rescorers.base import Params


@dataclass(frozen=True, slots=True)
class Term:
    """A word or phrase that is searched for beside the text.

    Attributes:
        text: As it is searched for; the fields' analyzers read it.
        weight: Its share of the expansion's weight; 1 where all count the same.
        documents: How many documents have it, where that was asked.
    """

    text: str
    weight: float = 1.0
    documents: int | None = None


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a text is expanded by.

    Attributes:
        terms: Searched for beside the text.
        dropped: Proposed and left out, with the reason.
        summary: What is to be said about it (JSON-ready), whether or not detail is asked for.
    """

    terms: tuple[Term, ...] = ()
    dropped: tuple[DroppedPhrase, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fields:
    """The searched fields.

    Attributes:
        text: The user's text fields, each with its boost where it has one (``title^2``).
        enrichment: Whether an index has the field of enrichment.
    """

    text: tuple[str, ...]
    enrichment: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The text fields without boosts."""
        return tuple(name.partition("^")[0] for name in self.text)


class Corpus(Protocol):
    """The means to expand a text: the searched documents, in the caller's name, and the language model.

    Attributes:
        fields: The searched fields.
        continues: Whether the model continues texts, in place of answering as an assistant.
    """

    @property
    def fields(self) -> Fields:
        """The searched fields."""
        ...

    @property
    def continues(self) -> bool:
        """Whether the model continues texts, in place of answering as an assistant."""
        ...

    def prompt(self, name: str) -> Prompt:
        """Return a prompt by its name; see :class:`es_ttc.rewriters.prompts.Prompts`.

        Raises:
            InvalidRequest: There is none of this name.
        """
        ...

    async def ask(
        self, prompt: str, *, max_tokens: int, stop: Sequence[str] = (), schema: JsonSchema | None = None
    ) -> str:
        """Return what the language model answers; the same prompt is asked once, however many requests have it.

        Raises:
            LlmError: It does not answer.
        """
        ...

    async def tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of texts as the first text field is analysed; lower-cased words where that is not told."""
        ...

    async def frequencies(self, phrases: Sequence[str]) -> Frequencies:
        """Return how many of the caller's documents have each phrase in one of the searched fields.

        Raises:
            EngineError: The engine refuses, or answers from a part of the documents only.
        """
        ...

    async def best(self, query: Mapping[str, Any], size: int) -> list[tuple[float, str]]:
        """Return the scores and texts of a query's best documents, best first; for feedback.

        Raises:
            EngineError: The engine refuses.
        """
        ...


P = TypeVar("P", bound=Params, contravariant=True)


@runtime_checkable
class Rewriter(Protocol[P]):
    """The contract of a rewriter; see ``es_ttc/rewriters/rm3.py`` for the smallest one.

    Attributes:
        name: The ``method`` of a request. Lower case.
        Params: The model that validates a request's ``params``.
        asks_model: Whether it needs a language model.
    """

    name: ClassVar[str]
    Params: ClassVar[type[Params]]
    asks_model: ClassVar[bool]

    def remembers(self, params: P) -> Mapping[str, Any]:
        """Return the parameters that the expansion depends on (JSON-ready), and versions of whatever else it does."""
        ...

    def fields(self, params: P) -> Sequence[str]:
        """Return the text fields that the request names; none where the index's own are searched."""
        ...

    def enrichment(self, params: P) -> bool | None:
        """Whether the field of enrichment is searched: True if an index must have it, None where it may."""
        ...

    async def expand(self, text: str, corpus: Corpus, params: P) -> Expansion:
        """Return what a text is expanded by.

        Args:
            text: The query's text.
            corpus: The means.
            params: Validated parameters.
        """
        ...

    def query(
        self, text: str, fields: Fields, expansion: Expansion | None, params: P, *, named: bool
    ) -> dict[str, Any]:
        """Return the native query; pure.

        Args:
            text: The query's text.
            fields: The searched fields.
            expansion: None for the plain query, which answers where there is no expansion.
            params: Validated parameters.
            named: Whether terms have names (:func:`es_ttc.rewriters.weighted.name_of`), so that hits can show them.
        """
        ...
