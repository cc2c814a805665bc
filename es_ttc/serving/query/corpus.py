"""What rewriters get to know of the corpus: asked of the engine in the caller's name, through the caller's door."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode

from es_ttc.enrichment.proposals.document_frequency import Frequencies, document_frequencies
from es_ttc.enrichment.proposals.phrases import Tokens, analyse
from es_ttc.errors import EngineError, InvalidRequest, MissingFeature
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import ENRICHMENT
from es_ttc.llm import JsonSchema, Prompt
from es_ttc.rewriters.base import Fields
from es_ttc.rewriters.prompts import Prompts
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.features.index_meta import meta_of
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.query.shared_model import SharedModel

_WORD = re.compile(r"\w+")
_FAILING = "the engine refused a question about the corpus"


@dataclass(frozen=True, slots=True)
class CallerCorpus:
    """The searched documents and the model; see :class:`es_ttc.rewriters.base.Corpus`.

    Attributes:
        engine: Asks the engine in the caller's name.
        model: The language model.
        prompts: Prompts by name.
        fields: The searched fields.
    """

    engine: "CorpusQuestions"
    model: SharedModel
    prompts: Prompts
    fields: Fields

    @property
    def continues(self) -> bool:
        """Whether the model continues texts."""
        return self.model.continues

    def prompt(self, name: str) -> Prompt:
        """Return a prompt by its name."""
        return self.prompts.named(name, "completions" if self.continues else "chat")

    async def ask(
        self, prompt: str, *, max_tokens: int, stop: Sequence[str] = (), schema: JsonSchema | None = None
    ) -> str:
        """Return what the model answers."""
        return await self.model.ask(prompt, max_tokens=max_tokens, stop=stop, schema=schema)

    async def tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of texts.

        Several indices may analyse differently, and some callers may search an index but not ask it to analyse: then
        lower-cased words are compared.
        """
        index = self.engine.one_index
        if index is not None:
            try:
                return await analyse(self.engine, index, self.fields.names[0], texts)
            except EngineError as error:
                if not 400 <= (error.upstream_status or 0) < 500:
                    raise
        return [tuple(word.casefold() for word in _WORD.findall(text)) for text in texts]

    async def frequencies(self, phrases: Sequence[str]) -> Frequencies:
        """Return document frequencies among the caller's documents."""
        fields = (*self.fields.names, *((ENRICHMENT,) if self.fields.enrichment else ()))
        return await document_frequencies(self.engine, self.engine.door, fields, phrases)

    async def best(self, query: Mapping[str, Any], size: int) -> list[tuple[float, str]]:
        """Return the scores and texts of a query's best documents."""
        body = {"query": query, "size": size, "_source": [*self.fields.names], "track_total_hits": False}
        answer = await self.engine.search(self.engine.door, body)
        return [
            (float(hit["_score"]), compose(hit.get("_source") or {}, self.fields.names)[0])
            for hit in answer["hits"]["hits"]
        ]


class CorpusQuestions:
    """Asks about the searched documents in a caller's name; see :class:`es_ttc.engine.protocol.SearchApi`.

    Args:
        upstream: The engine.
        caller: In whose name, and through which door.
        shared: Parts of the caller's body that hold for every search of his: a point in time, runtime fields.
    """

    def __init__(self, upstream: Upstream, caller: Caller, shared: Mapping[str, Any]) -> None:
        self._upstream = upstream
        self._engine = EngineRequests(upstream, caller)
        self._caller = caller
        self._shared = shared

    @property
    def door(self) -> str:
        """What the caller searches, as it stands in his path."""
        return unquote(self._caller.indices)

    @property
    def one_index(self) -> str | None:
        """The one index or alias that the caller names; None for a pattern, a list, or none."""
        return self.door if self.door and not set("*,") & set(self.door) and self.door != "_all" else None

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109, ARG002 - the upstream has its own
    ) -> Any:
        """Send one JSON request and return the decoded answer.

        Raises:
            EngineError: The engine answers with an error.
            EngineUnavailable: It gives no answer.
        """
        return await self._engine.json(
            method, path.encode(), urlencode(params or {}).encode(), body, failing=_FAILING, in_own_words=True
        )

    async def search(self, index: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:  # noqa: ARG002
        """Run one `_search` through the caller's door, whatever index is named."""
        path = f"/{self._caller.indices}/_search" if self._caller.indices else "/_search"
        naming = {} if "pit" in self._shared else dict(self._caller.params)
        found: dict[str, Any] = await self.request(
            "POST", path, params={**naming, **params}, body={**self._shared, **body}
        )
        return found

    async def fields(self, named: Sequence[str], *, enrichment: bool | None, method: str) -> Fields:
        """Return the fields that are searched.

        Args:
            named: The text fields that the request names, with boosts; none for the indices' own.
            enrichment: Whether the field of enrichment is searched; None where an index has it.
            method: Its method, for messages.

        Raises:
            EngineError: The engine refuses: no such index, no right to read it.
            InvalidRequest: No text field is named, and the indices tell none; or none of those named exists.
            MissingFeature: No index has the field of enrichment.
        """
        known = await self._known([ENRICHMENT, *(name.partition("^")[0] for name in named)])
        has_enrichment = ENRICHMENT in known and enrichment is not False
        if enrichment and not has_enrichment:
            raise MissingFeature(
                f"method [{method}] is to search [{ENRICHMENT}], which index [{self.door}] does not have: add it with "
                f"`es-ttc index enrichment {self.door}`, or leave out [params.enrichment]"
            )
        if not named:
            return Fields(await self._own_text_fields(method), has_enrichment)
        if self.door and not known - {ENRICHMENT}:
            raise InvalidRequest(f"none of [params.text_fields] is a field of index [{self.door}]: {', '.join(named)}")
        return Fields(tuple(named), has_enrichment)

    async def _known(self, names: Sequence[str]) -> frozenset[str]:
        """Return which fields an index has; the caller may search it, so may see that."""
        if not self.door:
            return frozenset(names) - {ENRICHMENT}
        params = {**dict(self._caller.params), "fields": ",".join(names)}
        answer = await self.request("GET", f"/{self._caller.indices}/_field_caps", params=params)
        return frozenset(name for name in names if name in answer["fields"])

    async def _own_text_fields(self, method: str) -> tuple[str, ...]:
        async for told in meta_of(self._upstream, self.door or "*", "text_fields", self._caller):
            if told:
                return tuple(dict.fromkeys(name for names in told for name in names))
        raise InvalidRequest(
            f"method [{method}] does not know which fields of index [{self.door}] hold text: name them in "
            '[params.text_fields], e.g. ["title^2", "text"]'
        )
