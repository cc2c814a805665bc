"""The data of the corpus for rewriters, read with the caller's credentials on the caller's target."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlencode

from es_ttc.enrichment.proposals.document_frequency import (
    FieldFrequencies,
    Frequencies,
    document_frequencies,
    field_frequencies,
)
from es_ttc.enrichment.proposals.phrases import Tokens, analyse
from es_ttc.errors import EngineError, MissingFeature
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import ENRICHMENT
from es_ttc.llm import JsonSchema, Prompt
from es_ttc.rewriters.base import Fields
from es_ttc.rewriters.prompts import Prompts
from es_ttc.serving.engine_requests import EngineRequests, require_complete
from es_ttc.serving.features.index_meta import meta_of
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.request.request import Pairs

_WORD = re.compile(r"\w+")
_FAILING = "the engine refused a question about the corpus"


class CallerCorpus:
    """The searched documents and the model; see :class:`es_ttc.rewriters.base.Corpus`.

    It sends requests as :class:`es_ttc.engine.protocol.SearchApi` says.

    All its searches have parts of the caller's body (`shared`: a point in time, runtime fields) and URL parameters
    (`shards`: which shards and copies, which statistics). Before the searched `fields` are looked up, they are those of
    the plain query: those named in the request, or all that hold text.
    """

    def __init__(
        self,
        gateway: Gateway,
        prompts: Prompts,
        caller: Caller,
        shared: Mapping[str, Any],
        shards: Pairs,
        named: tuple[str, ...],
    ) -> None:
        self.fields = Fields(named or ("*",))
        self._upstream = gateway.upstream
        self._engine = EngineRequests(gateway.upstream, caller)
        self._model = gateway.model
        self._prompts = prompts
        self._caller = caller
        self._shared = shared
        self._shards = dict(shards)
        self._target = unquote(caller.indices)

    @property
    def continues(self) -> bool:
        """Whether the model continues texts, or answers as an assistant."""
        return self._model.continues

    def prompt(self, name: str) -> Prompt:
        """Return a prompt by its name."""
        return self._prompts.named(name, "completions" if self.continues else "chat")

    async def ask(
        self, prompt: str, *, max_tokens: int, stop: Sequence[str] = (), schema: JsonSchema | None = None
    ) -> str:
        """Return the model's answer."""
        return await self._model.ask(prompt, max_tokens=max_tokens, stop=stop, schema=schema)

    async def tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of texts.

        If several indices analyse differently, or the caller may search an index but not call `_analyze`, lower-cased
        words are returned.
        """
        if self._target not in ("", "_all") and not set("*,") & set(self._target):
            try:
                return await analyse(self, self._target, self.fields.names[0], texts)
            except EngineError as error:
                if not 400 <= (error.upstream_status or 0) < 500:
                    raise
        return [tuple(word.casefold() for word in _WORD.findall(text)) for text in texts]

    async def frequencies(self, phrases: Sequence[str]) -> Frequencies:
        """Return document frequencies among the caller's documents."""
        return await document_frequencies(self, self._target, self._counted_fields, phrases)

    async def field_frequencies(self, words: Sequence[str]) -> FieldFrequencies:
        """Return document frequencies of words, field by field, among the caller's documents."""
        return await field_frequencies(self, self._target, self._counted_fields, words)

    @property
    def _counted_fields(self) -> tuple[str, ...]:
        return (*self.fields.names, *((ENRICHMENT,) if self.fields.enrichment else ()))

    async def best(self, query: Mapping[str, Any], size: int) -> list[tuple[float, str]]:
        """Return the scores and texts of a query's best documents."""
        names = self.fields.names
        body = {"query": query, "size": size, "_source": [*names], "track_total_hits": False}
        answer = await self.search(self._target, body)
        return [(float(hit["_score"]), compose(hit.get("_source") or {}, names)[0]) for hit in answer["hits"]["hits"]]

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109, ARG002 - the upstream has its own
    ) -> Any:
        """Send one JSON request and return the decoded answer."""
        return await self._engine.json(
            method, path.encode(), urlencode(params or {}).encode(), body, failing=_FAILING, in_own_words=True
        )

    async def search(self, index: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:  # noqa: ARG002
        """Run one `_search` on the caller's target, whatever index is named, as the caller's own search is run."""
        path = f"/{self._caller.indices}/_search" if self._caller.indices else "/_search"
        naming = {} if "pit" in self._shared else dict(self._caller.params)
        params = {**naming, **self._shards, **params}
        answer: dict[str, Any] = await self.request("POST", path, params=params, body={**self._shared, **body})
        require_complete(answer, _FAILING)
        return answer

    async def searched_fields(self, named: Sequence[str], *, enrichment: bool | None, method: str) -> Fields:
        """Return the fields that are searched.

        Args:
            named: The text fields in the request, with boosts; none for the indices' own.
            enrichment: Whether the field of enrichment is searched; None: if an index has it.
            method: The method's name, for messages.
        """
        existing = await self._existing([ENRICHMENT, *(name.partition("^")[0] for name in named)])
        has_enrichment = ENRICHMENT in existing and enrichment is not False
        if enrichment and not has_enrichment:
            raise MissingFeature(
                f"method [{method}] is to search [{ENRICHMENT}], which index [{self._target}] does not have: add it "
                f"with `es-ttc index enrichment {self._target}`, or leave out [params.enrichment]"
            )
        if not named:
            return Fields(await self._own_text_fields(method), has_enrichment)
        if self._target and not existing - {ENRICHMENT}:
            raise MissingFeature(
                f"none of [params.text_fields] is a field of index [{self._target}]: {', '.join(named)}"
            )
        return Fields(tuple(named), has_enrichment)

    async def _existing(self, names: Sequence[str]) -> frozenset[str]:
        """Return which of some fields the caller's target has."""
        if not self._target:
            return frozenset(names) - {ENRICHMENT}
        params = {**dict(self._caller.params), "fields": ",".join(names)}
        answer = await self.request("GET", f"/{self._caller.indices}/_field_caps", params=params)
        return frozenset(name for name in names if name in answer["fields"])

    async def _own_text_fields(self, method: str) -> tuple[str, ...]:
        async for fields in meta_of(self._upstream, self._target or "*", "text_fields", self._caller):
            if fields:
                return tuple(dict.fromkeys(name for names in fields for name in names))
        raise MissingFeature(
            f"method [{method}] does not know which fields of index [{self._target}] hold text: name them in "
            '[params.text_fields], e.g. ["title^2", "text"]'
        )
