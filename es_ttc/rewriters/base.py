"""The contract of a rewriter: a declaration, a coroutine from text to weighted terms, and a pure function to a query.

The slow part (``expand``: calls a model, counts documents) is cached by the gateway and has a deadline; the other part
(``query``) is pure, and also builds the plain query that is used without an expansion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from es_ttc.enrichment.proposals.document_frequency import FieldFrequencies, Frequencies
from es_ttc.enrichment.proposals.phrases import DroppedPhrase, Tokens
from es_ttc.llm import JsonSchema, Prompt
from es_ttc.rescorers.base import Params


@dataclass(frozen=True, slots=True)
class Term:
    """A word or phrase that is searched in addition to the text.

    Attributes:
        text: As it is searched; the fields' analyzers process it.
        weight: Its share of the expansion's weight; 1 if all count the same.
        documents: Its document frequency, if it was counted.
        group: Terms of one group are alternatives, of which a document's best one counts; None for a term by itself.
        boosts: Factor of its score in a field, by field; 1 for a field that is not named.
    """

    text: str
    weight: float = 1.0
    documents: int | None = None
    group: int | None = None
    boosts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expansion:
    """The expansion of a text.

    Attributes:
        terms: Terms to search in addition to the text.
        dropped: Proposed terms that were dropped, with the reason.
        summary: Values for the summary (JSON-ready), whether or not detail is requested.
        excluded: Terms that speak against a document.
        own: The text's own words, each as a term, where they are not scored as one text.
    """

    terms: tuple[Term, ...] = ()
    dropped: tuple[DroppedPhrase, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    excluded: tuple[Term, ...] = ()
    own: tuple[Term, ...] = ()


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
    """The data for an expansion: the searched documents, read with the caller's credentials, and the language model.

    Attributes:
        fields: The searched fields.
        continues: Whether the model continues texts, or answers as an assistant.
    """

    @property
    def fields(self) -> Fields:
        """The searched fields."""

    @property
    def continues(self) -> bool:
        """Whether the model continues texts, or answers as an assistant."""

    def prompt(self, name: str) -> Prompt:
        """Return a prompt by its name; see :class:`es_ttc.rewriters.prompts.Prompts`.

        Raises:
            InvalidRequest: There is none of this name.
        """

    async def ask(
        self, prompt: str, *, max_tokens: int, stop: Sequence[str] = (), schema: JsonSchema | None = None
    ) -> str:
        """Return the language model's answer; equal prompts are sent once, whatever the number of requests.

        Raises:
            LlmError: The model returned no answer.
        """

    async def tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of texts by the first text field's analyzer; lower-cased words if that is not available."""

    async def frequencies(self, phrases: Sequence[str]) -> Frequencies:
        """Return the document frequencies of phrases in the searched fields, among the caller's documents.

        Raises:
            EngineError: The engine returned an error, or a partial answer.
        """

    async def field_frequencies(self, words: Sequence[str]) -> FieldFrequencies:
        """Return the document frequencies of words in each searched field by itself, among the caller's documents.

        Raises:
            EngineError: The engine returned an error, or a partial answer.
        """

    async def best(self, query: Mapping[str, Any], size: int) -> list[tuple[float, str]]:
        """Return the scores and texts of a query's best documents, best first; for feedback.

        Raises:
            EngineError: The engine returned an error.
        """


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
        """Return the parameters that the expansion depends on (JSON-ready), and versions of other inputs."""

    def fields(self, params: P) -> Sequence[str]:
        """Return the text fields that the request names; none for the indices' own."""

    def enrichment(self, params: P) -> bool | None:
        """Whether the field of enrichment is searched: True if an index must have it, None if it may."""

    async def expand(self, text: str, corpus: Corpus, params: P) -> Expansion:
        """Return the expansion of a text.

        Args:
            text: The query's text.
            corpus: The data for the expansion.
            params: Validated parameters.
        """

    def query(
        self, text: str, fields: Fields, expansion: Expansion | None, params: P, *, named: bool
    ) -> dict[str, Any]:
        """Return the native query; pure.

        Args:
            text: The query's text.
            fields: The searched fields.
            expansion: None for the plain query.
            params: Validated parameters.
            named: Whether terms have names (:func:`es_ttc.rewriters.weighted.name_of`), which hits then contain.
        """
