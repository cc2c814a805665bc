"""`es-ttc search` and `es-ttc explain`: one query, ranked by a method, and why a document is where it is."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import click
from pydantic import Field

from es_ttc.cli import searching, tables
from es_ttc.cli.common import (
    AdapterName,
    AsJson,
    EngineUrl,
    print_json,
    provided,
    stderr,
    stdout,
    with_adapter_of,
    with_engine,
)
from es_ttc.cli.model_options import command
from es_ttc.cli.options import Filter, GatewayUrl, NamesType, first_pass_option, params_option
from es_ttc.cli.searching import CliQuery, SearchTarget, match_body
from es_ttc.cli.views import ShownHit, ShownRanking, answer
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.mappings.encoder import check_encoder, load_encoder_for
from es_ttc.lab.evaluation.methods import resolve_one
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings, Settings

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """Options that say through which gateway an index is searched."""

    engine: EngineUrl = None
    adapter: AdapterName = None
    gateway: GatewayUrl = None

    @property
    def settings(self) -> GatewaySettings:
        """The settings of a gateway that ends with the command."""
        return with_adapter_of(GatewaySettings(**provided(engine=self.engine, port=0)), self.adapter)

    def run(self, load: Callable[[Settings], Encoder], call: Callable[[Engine], Awaitable[T]]) -> T:
        """Return what a call returns with a client of the named gateway, or of one that ends with the call."""
        settings, url = self.settings, self.gateway
        if url is not None:
            return with_engine(settings.model_copy(update={"engine": url}), call)
        encoder = load(settings)
        with running_gateway(settings, load=lambda _name, _folder: encoder) as own:
            return with_engine(settings.model_copy(update={"engine": own}), call)


@command(
    'es-ttc search articles "insulin resistance in mice" --compare',
    'es-ttc search articles "heart attack" --method knn:nnn',
    'es-ttc search articles "heart attack" --params \'{"signals": {"lexical": 2, "dense": 1}}\'',
    'es-ttc search articles "heart attack" --method spectral --first-pass dense',
    'es-ttc search articles "heart attack" --filter "year>=2020 and journal=Lancet"',
)
def search(
    name: str,
    text: str,
    /,
    *,
    method: Annotated[
        str, "Method: blend, hybrid, spectral, maxsim, dense or bm25; any other rescorer, a rewriter, or knn:RETRIEVER."
    ] = "blend",
    params: Annotated[dict[str, Any], params_option("Parameters of the method.", '{"scales": [1, 5]}')],
    first_pass: Annotated[str, first_pass_option(["bm25", "dense"], "bm25", "First pass of a rescorer.")],
    among: Filter = None,
    beside: Annotated[bool, "--compare", "Also show the engine's BM25 ranking and hybrid (RRF)."] = False,
    size: Annotated[int, Field(ge=1, le=100), "Number of hits."] = 10,
    fields: Annotated[
        tuple[str, ...] | None,
        "--fields FIELD,...",
        NamesType(),
        "Text fields to search and show. Default: those of the index.",
    ] = None,
    facets: Annotated[
        tuple[str, ...] | None,
        "--facets FIELD,...",
        NamesType(),
        "Fields whose values are counted over the documents that the search finds; numbers as their range.",
    ] = None,
    through: GatewayOptions,
    as_json: AsJson,
) -> None:
    """Search the index NAME for TEXT.

    Each hit shows where it matches. blend, the default, ranks BM25's best 100 hits together with the 100 documents
    nearest by pooled vector, by every signal that the index has; hybrid ranks them by BM25 and dense alone (RRF).
    Other rescorers, such as spectral, reorder BM25's best 100 hits, or with --first-pass dense the 100 nearest
    documents, which need not share a word with TEXT. A retriever, such as knn:nnn, searches the whole index. A
    rewriter, such as sira, searches it by a query with further words. --compare also shows how each document moves
    against the engine's BM25 ranking.
    """
    if not text.strip():
        raise InvalidRequest("TEXT is empty: give the words to search for")
    resolve_one(method, params)
    asked = CliQuery(text, method, size, params, first_pass, among)

    async def ask(client: Engine) -> tuple[list[ShownRanking], dict[str, dict[str, Any]]]:
        target = await SearchTarget.of(client, name, fields)
        await searching.require_compared_fields(target, asked)
        counted = await searching.facets_of(target, asked, facets) if facets else {}
        rankings = (
            await searching.compare_methods(target, asked)
            if beside
            else [await searching.search_by_method(target, asked)]
        )
        return rankings, counted

    with stderr.status("searching"):
        rankings, counted = through.run(lambda settings: encoder_of_index(settings, name), ask)
    if as_json:
        print_json(rankings_as_dict(name, asked, rankings) | ({"facets": counted} if facets else {}))
        return
    stdout.print(answer(rankings, size))
    for field, values in counted.items():
        counts = ", ".join(f"{value} {count:,.6g}" for value, count in values.items())
        click.echo(f"{field}: {counts or 'no document that the search finds has a value'}")


def encoder_of_index(settings: Settings, name: str) -> Encoder:
    """Load the encoder that an index was encoded by."""
    spec = with_engine(settings, lambda client: Indices.behind(client, name)).shared_spec()
    encoder = load_encoder_for(spec.encoder, settings.chosen_encoder, cache_dir=settings.cache_dir)
    check_encoder(name, spec, encoder)
    return encoder


def rankings_as_dict(name: str, asked: CliQuery, rankings: Sequence[ShownRanking]) -> dict[str, Any]:
    """Return rankings JSON-ready; beside others, every hit has its rank in the first of them too."""
    before = rankings[0].ranks() if len(rankings) > 1 else None
    return {
        "index": name,
        "query": asked.text,
        "method": asked.method,
        "params": dict(asked.params or {}),
        **({} if asked.among is None else {"filter": dict(asked.among)}),
        "rankings": {
            ranking.heading: [_hit(hit, place, before) for place, hit in enumerate(ranking.hits[: asked.size], 1)]
            for ranking in rankings
        },
    }


def _hit(hit: ShownHit, place: int, before: Mapping[str, int] | None) -> dict[str, Any]:
    found = {"rank": place, "id": hit.id, "score": hit.score, "fields": dict(hit.fields)}
    if hit.span is not None:
        found["match"] = asdict(hit.span)
    if before is not None:
        found["rank_before"] = before.get(hit.id)
    return found


@command(
    'es-ttc explain articles "insulin resistance in mice" --id 4983',
    'es-ttc explain articles "heart attack" --id 4983 --filter "year>=2020" --gateway http://127.0.0.1:9280',
)
def explain(
    name: str,
    text: str,
    /,
    *,
    document: Annotated[str, "--id ID", "Id of the document."],
    method: Annotated[str, "Method of `rescore`."] = "blend",
    among: Filter = None,
    size: Annotated[int, Field(ge=1, le=100), "Number of hits of a page."] = 10,
    through: GatewayOptions,
    as_json: AsJson,
) -> None:
    """Explain a document's rank in a search of the index NAME for TEXT, or why it is not found.

    It says whether the query matches the document and at which rank, the document's rank under each signal, which
    filter drops it, which words of TEXT it lacks, whether it has features, and the least change of one of blend's
    weights that would bring it to the first page. `POST /_ttc/explain` does the same for any body of a search.
    """

    async def ask(client: Engine) -> dict[str, Any]:
        target, asked = await SearchTarget.of(client, name), CliQuery(text, method, size, among=among)
        await searching.require_compared_fields(target, asked)
        search = match_body(target.fields, asked)
        search["rescore"] = {"ttc": {"method": method, "query_text": text}}
        body = {"index": name, "id": document, "search": search}
        found: dict[str, Any] = await client.request("POST", "/_ttc/explain", body=body)
        return found

    with stderr.status("searching"):
        explanation = through.run(lambda settings: encoder_of_index(settings, name), ask)
    if as_json:
        print_json(explanation)
        return
    console = tables.console()
    for sentence in explanation["reasons"]:
        console.print(f"- {sentence}", markup=False, highlight=False, soft_wrap=True)
    rows = [
        (signal, *("" if one[key] is None else f"{one[key]:.4g}" for key in ("score", "rank")))
        for signal, one in explanation["signals"].items()
    ]
    if rows:
        console.print(tables.table(("signal", "score", f"rank of {explanation['found']}"), rows))
