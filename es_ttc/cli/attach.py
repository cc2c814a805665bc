"""`es-ttc attach`, `fill` and `detach`: features for an existing index."""

import asyncio
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

import aiohttp
import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from es_ttc.cli.common import (
    AsJson,
    EncoderName,
    EncoderOptions,
    EngineUrl,
    confirm,
    gateway_headers,
    loaded_encoder,
    print_json,
    print_result,
    provided,
    run_to_completion,
    sample_documents,
    stop_on_sigterm,
    strips_html,
    take_proposal,
    warn_of_texts,
    with_engine,
)
from es_ttc.cli.evaluating import stages
from es_ttc.cli.model_options import command
from es_ttc.cli.options import StripHtml, check_storage, explicit_options, feature_options, with_storage
from es_ttc.cli.size_estimates import (
    described_storage,
    fields_table,
    longer,
    size_sentence,
    size_table,
    time_sentence,
)
from es_ttc.encoders.base import TOKENS_FROM, Encoder, EncoderIdentity, loadable_name
from es_ttc.encoders.models import ModelDescription, named
from es_ttc.encoders.registry import parse_name
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine, delete_if_there
from es_ttc.enrichment.jobs.following import forget
from es_ttc.errors import EncoderMismatch, EngineUnavailable, InvalidRequest
from es_ttc.index.attach import (
    AttachedObjects,
    FillResult,
    attach_beside,
    attach_on_demand,
    fill_attached,
    traces_of,
)
from es_ttc.index.attach import detach as take_away
from es_ttc.index.attach.feature_locations import Indices, fill_indices
from es_ttc.index.attach.fill import ReportFill
from es_ttc.index.attach.side_index import attached_sources
from es_ttc.index.attach.source import require_text_fields
from es_ttc.index.attach.source_checks import require_readable
from es_ttc.index.ingest.proposal import describe, propose_fields
from es_ttc.index.ingest.size_estimate import estimate_size, share_with_text
from es_ttc.index.mappings.contents import stored_bytes
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import DEFAULT_FIELDS, IndexSpec, refuse_in_index_features
from es_ttc.lab.judging.store import JUDGEMENTS_INDEX, SIGNALS_INDEX
from es_ttc.reranking.index_graph import delete_graphs
from es_ttc.settings import GatewaySettings, Settings
from es_ttc.vectors.codecs import DEFAULT_CODEC

_WATCH_SECONDS = 5.0
_GATEWAY_SECONDS = 1.0
_READ = 20  # documents that are read for an estimate of sizes


@command(
    "es-ttc attach products --text-fields title,description",
    "es-ttc attach products --dry-run",
    "es-ttc attach products --on-demand",
    "es-ttc attach products --spans scale=10,stride=5",
    "es-ttc attach products --encoder mpnet",
    "es-ttc attach products-2 --like products-1",
)
@feature_options
def attach(
    name: str,
    /,
    *,
    engine: EngineUrl,
    encoding: EncoderOptions,
    dry_run: Annotated[bool, "Print the disk space and the time of the features; write nothing."] = False,
    on_demand: Annotated[
        bool, "Encode nothing now: gateways encode the documents that searches find, most often seen first."
    ] = False,
    like: Annotated[
        str | None,
        "--like INDEX",
        "Attached index whose options are taken, with the features of its documents of the same id and text.",
    ] = None,
    yes: Annotated[bool, "Accept the proposed text fields."] = False,
    strip_html: StripHtml = "auto",
    as_json: AsJson,
    **features: Any,
) -> int:
    """Create and fill the features of an existing index NAME.

    The features are stored in a hidden side index with the same ids. Nothing in NAME changes. NAME may be an alias or a
    data stream; each index behind it gets its own side index. The gateway finds side indices by itself.

    The fields to encode are --text-fields, those of the present features, or title and text. If the index has neither,
    they are proposed from its first documents.

    Run the command again to resume a stopped run, or to update the features (`es-ttc fill` does only that). With
    another --encoder, other fields or another storage, a new side index is filled while the old one serves. Then
    searches switch to it in one step, and the old one is deleted.

    After a reindex, --like takes the features of the earlier index: documents of the same id and text are not encoded.

    With --on-demand the side index is empty and serves at once. Gateways encode the documents of searched windows that
    have no features, beside searches, with their own account (settings on_demand_share, on_demand_queue). `es-ttc fill`
    encodes the rest.

    Exit status: 0 when every document is done; 1 when some documents cannot have features (they are marked with the
    reason) or the run failed; 130 when it was stopped.
    """
    settings = encoding.settings(Settings, engine=engine)
    context = click.get_current_context()
    check_storage(context, features["tokens"])
    chosen = with_storage(explicit_options(context, features | {"strip_html": strip_html}))
    named = encoding.is_given
    if like is not None and on_demand:
        raise click.UsageError("--like copies features, and --on-demand begins without any: give one of the two")
    request = _Request(settings, name, chosen, encoder_named=named, yes=yes or dry_run, like=like)
    if dry_run:
        estimates = with_engine(settings, lambda client: _dry_run(client, request))
        shown: list[Text | Table] = []
        for index, each in estimates.items():
            shown += [Text(f"[{index}]: {each.sentence}"), *each.tables]
        indices = [{"index": index, "estimate": each.figures} for index, each in estimates.items()]
        print_result({"name": name, "indices": indices}, Group(*shown), as_json=as_json)
        return 0
    if on_demand:
        sides = with_engine(settings, lambda client: _attach_on_demand(client, request))
        text = "\n".join(
            f"[{source}] is encoded on demand, in side index [{side}]; `es-ttc fill {name}` encodes all of it"
            for source, side in sides.items()
        )
        attached = [{"index": source, "side_index": side} for source, side in sides.items()]
        print_result({"name": name, "indices": attached}, text, as_json=as_json)
        return 0
    how = f"run `es-ttc attach {name}` with the same options to go on"
    filled = run_to_completion(settings, lambda client: _attach(client, request), how)
    return _report_fill(name, filled, as_json=as_json)


@command("es-ttc fill products", "es-ttc fill products --watch", "es-ttc fill products --all")
def fill(
    name: str,
    /,
    *,
    engine: EngineUrl,
    encoder: EncoderName,
    watch: Annotated[bool, "Run until stopped, and follow writes to NAME."] = False,
    everything: Annotated[
        bool, "--all", "Check every document, including failed ones, instead of those written since the last run."
    ] = False,
    as_json: AsJson,
) -> int:
    """Update the features of the index NAME.

    Finds documents that were written, changed or deleted since the last run, and updates their features. A write of
    another program during the run is never overwritten; that document is processed again. Works for attached indices
    and for those made by es-ttc.

    Exit status: as for `es-ttc attach`; a stopped --watch ends with 0.
    """
    settings = Settings(**provided(engine=engine, encoder=encoder))
    if watch:
        if as_json:
            raise click.UsageError("--watch has no end to report about: leave out --json")
        try:
            asyncio.run(_watch(settings, name, everything=everything))
        except (KeyboardInterrupt, asyncio.CancelledError):
            return 0
    how = f"run `es-ttc fill {name}` to go on"
    filled = run_to_completion(settings, lambda client: _fill(client, settings, name, everything=everything), how)
    return _report_fill(name, filled, as_json=as_json)


@command("es-ttc detach products", "es-ttc detach products --yes --json", "es-ttc detach --all")
def detach(
    name: str | None = None,
    /,
    *,
    yes: Annotated[bool, "Skip the confirmation."] = False,
    everything: Annotated[
        bool, "--all", "Remove it for every index, and delete es-ttc's own indices: jobs and judgements."
    ] = False,
    engine: EngineUrl,
    as_json: AsJson,
) -> None:
    """Remove everything that `es-ttc attach` has created for NAME.

    Removes side indices with their aliases, and the neighbour graph.
    """
    if everything == (name is not None):
        raise click.UsageError("give either NAME or --all")
    settings = Settings(**provided(engine=engine))
    found, own = with_engine(settings, lambda client: _traces(client, settings.jobs_index, name))
    deleted = own if everything else {}
    named = f"[{name}]" if name else "all indices"
    if not deleted and not any(each.sides for each in found):
        text = f"nothing is attached to {named}{_left(own)}"
        print_result({"name": name, "indices": [], "deleted": []}, text, as_json=as_json)
        return
    if not yes:
        announced = [*_announced(found), *(f"index [{one}] with {count:,} documents" for one, count in deleted.items())]
        confirm(f"detaching {named}", "Remove all of it?", as_json=as_json, announced=announced)
    with_engine(settings, lambda client: _detach(client, settings.jobs_index, found, deleted))
    if as_json:
        print_json({"name": name, "indices": [*map(asdict, found)], "deleted": [*deleted]})
        return
    for each in found:
        click.echo(f"detached [{each.index}]")
    for one in deleted:
        click.echo(f"deleted [{one}]")
    if left := _left(own if not deleted else {}):
        click.echo(f"es-ttc{left}", err=True)


def _left(own: dict[str, int]) -> str:
    """Return what stays of es-ttc's own indices, as the end of a sentence."""
    named = ", ".join(f"[{name}] ({count:,} documents)" for name, count in own.items())
    return f": es-ttc's own indices stay: {named}; `es-ttc detach --all` deletes them" if own else ""


def _report_fill(name: str, filled: Sequence[FillResult], *, as_json: bool) -> int:
    data = {"name": name, "indices": [asdict(each) for each in filled]}
    print_result(data, "\n".join(map(_sentence, filled)), as_json=as_json)
    for each in filled:
        for reason in each.unmarked:
            click.echo(f"es-ttc: {reason}", err=True)
    failed = sum(each.failed for each in filled)
    if failed:
        click.echo(f"es-ttc: {failed:,} documents cannot have features: see `es-ttc index show {name}`", err=True)
    return 1 if failed else 0


@dataclass(frozen=True, slots=True)
class _Request:
    """What `es-ttc attach` is asked for; `chosen` has the features that were given explicitly."""

    settings: Settings
    name: str
    chosen: dict[str, Any]
    encoder_named: bool
    yes: bool
    like: str | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What an attach will do; `samples` are the first documents of each index."""

    sources: Sequence[Index]
    samples: Sequence[Sequence[dict[str, Any]]]
    spec: IndexSpec
    encoder: Encoder
    like: Index | None


class _Estimate(NamedTuple):
    """What the features of an index would take; no figures if no first document has text."""

    sentence: str
    figures: dict[str, Any] | None = None
    tables: tuple[Table, ...] = ()


async def _dry_run(engine: Engine, request: _Request) -> dict[str, _Estimate]:
    return await _estimates(engine, await _planned(engine, request), in_table=True)


async def _attach(engine: Engine, request: _Request) -> list[FillResult]:
    plan = await _planned(engine, request)
    for index, each in (await _estimates(engine, plan)).items():
        click.echo(f"[{index}]: {each.sentence} (estimated)", err=True)
    await _tell_of_gateway(plan.encoder)
    with _reporting() as report:
        return [
            await attach_beside(engine, each, plan.spec, plan.encoder, like=plan.like, report=report)
            for each in plan.sources
        ]


async def _attach_on_demand(engine: Engine, request: _Request) -> dict[str, str]:
    """Return the side index of each index."""
    plan = await _planned(engine, request)
    await _tell_of_gateway(plan.encoder)
    return {source.index: await attach_on_demand(engine, source, plan.spec) for source in plan.sources}


async def _tell_of_gateway(encoder: Encoder) -> None:
    """Print that a running gateway lacks an encoder, if it does."""
    if lacking := await encoder_lacking(encoder.identity):
        click.echo(f"es-ttc: {lacking}", err=True)


async def encoder_lacking(encoder: EncoderIdentity, **flags: Any) -> str:
    """Return a sentence if a gateway at the address of the settings certainly lacks an encoder, else ""."""
    try:
        settings = GatewaySettings(**flags)  # wrong ones are no reason not to attach
        url, headers = f"http://{settings.host}:{settings.port}", gateway_headers(settings.admin_token)
        timeout = aiohttp.ClientTimeout(total=_GATEWAY_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/_ttc/", headers=headers) as answer,
        ):
            names: list[str] = (await answer.json())["encoders"]
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
        return ""  # no gateway, or none that tells
    served, wanted = [_models(name) for name in names], loadable_name(encoder.key)
    if _models(wanted) in served or any(None in models for models in served):  # a folder may hold any model
        return ""
    options = " ".join(f"--encoder {shlex.quote(name)}" for name in (*names, wanted))
    return f"the gateway at {url} lacks the encoder [{wanted}]: start it again with `es-ttc serve {options}`"


def _models(name: str) -> list[ModelDescription | None]:
    """Return the models with short names in an encoder's name, None for others."""
    return [named(parse_name(part).model) for part in name.split(TOKENS_FROM)]


async def _estimates(engine: Engine, plan: _Plan, *, in_table: bool = False) -> dict[str, _Estimate]:
    """Return by index what the features would take, in tables or in a sentence."""
    spec = plan.spec
    estimates: dict[str, _Estimate] = {}
    for source, documents in zip(plan.sources, plan.samples, strict=True):
        first = documents[:_READ]
        size = await asyncio.to_thread(estimate_size, first, spec, plan.encoder)
        if size is None:
            sentence = f"none of the first {_READ} documents has text in {','.join(spec.text_fields)}"
            estimates[source.index] = _Estimate(sentence)
            continue
        count = round(await engine.count(source.index) * share_with_text(first, spec))
        stored = await stored_bytes(engine, source.index)
        if in_table:
            tables = (
                fields_table(describe(documents, spec.text_fields)),
                size_table(size, described_storage(spec), count),
            )
            estimates[source.index] = _Estimate(time_sentence(size, spec, count, stored), size.as_dict(count), tables)
        else:
            estimates[source.index] = _Estimate(size_sentence(size, spec, count, stored), size.as_dict(count))
    return estimates


async def _planned(engine: Engine, request: _Request) -> _Plan:
    indices = await Indices.behind(engine, request.name)
    for source in indices.sources:
        if source.meta:
            refuse_in_index_features(source.index, source.meta)
            raise InvalidRequest(
                f"index [{source.index}] was made by `es-ttc index create` and needs no side index: `es-ttc fill "
                f"{source.index}` updates its features"
            )
    like = None if request.like is None else (await Indices.behind(engine, request.like)).only()
    if like is not None and not like.side:
        raise InvalidRequest(f"[--like {request.like}] must name an attached index; its documents have the features")
    known = [*indices.present, *([like] if like else [])]
    present = known[0].spec if known else None
    options = dict(request.chosen)
    dims, strip = options.pop("dims", None), options.pop("strip_html", "auto" if present is None else None)
    samples = [await sample_documents(engine, source.index) for source in indices.sources]
    if present is None and "text_fields" not in options:
        options |= _proposed(indices.sources, samples[0], yes=request.yes)
    if present is None or request.encoder_named or dims is not None:
        encoder = await asyncio.to_thread(loaded_encoder, request.settings, dims=dims)
    else:
        encoder = await asyncio.to_thread(_encoder_of_before, request.settings, present.encoder)
    spec = merged_spec(options, present, encoder.identity, distinguishes_roles=encoder.distinguishes_roles)
    for source in indices.sources:
        require_text_fields(source, spec.text_fields)
        await require_readable(engine, source, spec.text_fields)  # of all, before one of them is attached
    if strip is not None:
        warn_of_texts(samples[0], spec.text_fields, encoder.identity)
        spec = replace(spec, strip_html=strips_html(strip, samples[0], spec.text_fields))
    return _Plan(indices.sources, samples, spec, encoder, like.holder if like else None)


def merged_spec(
    options: Mapping[str, Any], present: IndexSpec | None, encoder: EncoderIdentity, *, distinguishes_roles: bool
) -> IndexSpec:
    """Return the spec of the options that were given, else of the present features, else of the defaults."""
    spec = replace(present or IndexSpec(encoder), encoder=encoder, **options)
    if spec.tokens != "packed":
        spec = replace(spec, codec=DEFAULT_CODEC)  # unused there
    if spec.tokens == "none":
        spec = replace(spec, skip_tokens="none")
    # A run without --chunks and with the same encoder goes on with what the features have, also of earlier releases.
    if present is None or "chunks" in options or encoder.key != present.encoder.key:
        spec = replace(spec, reversed=spec.chunks and distinguishes_roles)
    return spec


def _proposed(sources: Sequence[Index], documents: Sequence[dict[str, Any]], *, yes: bool) -> dict[str, Any]:
    """Return text fields proposed from the first documents, as an option; none if the index has the default fields."""
    try:
        for source in sources:
            require_text_fields(source, DEFAULT_FIELDS)
    except InvalidRequest:
        proposal = propose_fields(documents)
        if not proposal.text_fields:
            raise
        missing = ", ".join(name for name in DEFAULT_FIELDS if name not in source.leaf_fields)
        lacks = f"index [{source.index}] has no field [{missing}]"
        options = f"--text-fields {','.join(proposal.text_fields)}"
        described = ", ".join(map(str, describe(documents, proposal.text_fields)))
        take_proposal(f"{lacks}; proposed: {options}: {described}", yes=yes)
        return {"text_fields": proposal.text_fields}
    return {}


def _encoder_of_before(settings: Settings, identity: EncoderIdentity) -> Encoder:
    """Load the encoder of the features; refuse another one that is set here."""
    encoder = loaded_encoder(settings, identity)
    if encoder.identity.key != identity.key:
        raise EncoderMismatch(
            f"the features are those of [{identity.key}], and the encoder set here is [{encoder.identity.key}]: "
            f"give --encoder {identity.model} to bring them up to date, or --encoder {settings.encoder} to make all of "
            "them anew"
        )
    return encoder


async def _fill(engine: Engine, settings: Settings, name: str, *, everything: bool) -> list[FillResult]:
    indices = await Indices.behind(engine, name)
    encoder = await _encoder_of(settings, indices)
    with _reporting() as report:
        return await fill_indices(engine, indices, encoder, everything=everything, report=report)


async def _watch(settings: Settings, name: str, *, everything: bool = False) -> None:
    """Repeat the fill; wait for an engine that is temporarily unreachable."""
    stop_on_sigterm()
    async with connected(settings) as engine:
        encoder = await _encoder_of(settings, await Indices.behind(engine, name))
        click.echo(f"following [{name}], every {_WATCH_SECONDS:g} s; Ctrl-C ends it", err=True)
        while True:
            try:
                for filled in await fill_attached(engine, name, encoder, everything=everything):
                    if filled.written or filled.failed or filled.removed:
                        click.echo(_sentence(filled))
                everything = False
            except EngineUnavailable as error:
                click.echo(f"es-ttc: {error}; trying again", err=True)
            await asyncio.sleep(_WATCH_SECONDS)


async def _encoder_of(settings: Settings, indices: Indices) -> Encoder:
    if not indices.present:
        raise InvalidRequest(f"[{indices.name}] has no features yet: run `es-ttc attach {indices.name}`")
    return await asyncio.to_thread(loaded_encoder, settings, indices.present[0].spec.encoder)


async def _traces(engine: Engine, jobs: str, name: str | None) -> tuple[list[AttachedObjects], dict[str, int]]:
    """Return what is attached to an index, or to all; and es-ttc's own indices with their numbers of documents."""
    names = [name] if name else await attached_sources(engine)
    found = [traces for one in names for traces in await traces_of(engine, one)]
    params = {"expand_wildcards": "all", "ignore_unavailable": "true", "allow_no_indices": "true"}
    wanted = ",".join((jobs, f"{jobs}-outcomes", f"{jobs}-proposals", JUDGEMENTS_INDEX, SIGNALS_INDEX))
    own = await engine.request("GET", f"/{wanted}/_mapping", params=params)
    return found, {one: await engine.count(one) for one in sorted(own)}


async def _detach(engine: Engine, jobs: str, found: Sequence[AttachedObjects], own: Collection[str]) -> None:
    stop_on_sigterm()
    for traces in found:
        await delete_graphs(engine, traces.index)  # it is useless without the features
        await forget(engine, jobs, traces.index)
        await take_away(engine, traces)
    for name in own:
        await delete_if_there(engine, name)


@contextmanager
def _reporting() -> Iterator[ReportFill]:
    with stages("features") as progress:
        yield lambda filled: progress(filled.index, filled.seen, filled.total)


def _announced(found: Sequence[AttachedObjects]) -> list[str]:
    return [f"side index [{side}] of [{each.index}], with its alias" for each in found for side in each.sides]


def _sentence(filled: FillResult) -> str:
    parts = [f"{filled.written:,} documents got features"]
    parts += [f"{filled.carried:,} took stored ones"] if filled.carried else []
    parts += [f"{filled.unchanged:,} had them"] if filled.unchanged else []
    parts += [f"{filled.removed:,} gone ones removed"] if filled.removed else []
    parts += [f"{filled.empty:,} have no text"] if filled.empty else []
    parts += [longer(filled.truncated, filled.tokens_read)] if filled.truncated else []
    parts += [f"{filled.failed:,} failed"] if filled.failed else []
    busy = filled.encoder_seconds / filled.seconds if filled.seconds else 0.0
    rate = filled.seen / filled.seconds if filled.seconds else 0.0
    speed = f"{rate:,.1f} a second, encoder busy {busy:.0%}"
    return f"[{filled.index}] {', '.join(parts)} in {filled.seconds:,.1f} s ({speed})"
