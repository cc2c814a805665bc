"""`es-ttc index`: create, show, change and delete indices with features."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

import click
from pydantic import Field
from rich.table import Table

from es_ttc.cli.common import (
    AsJson,
    EncoderName,
    EncoderOptions,
    EngineUrl,
    confirm,
    encoded_share,
    loaded_encoder,
    mebibytes,
    print_result,
    provided,
    run_to_completion,
    with_engine,
    without_tokens,
)
from es_ttc.cli.evaluating import stages
from es_ttc.cli.model_options import CommandGroup, command
from es_ttc.cli.options import SKIP_HELP, STORAGE_HELP, StripHtml, check_storage, feature_options, with_storage
from es_ttc.cli.size_estimates import SAMPLE_TEXT, described_storage, size_sentence
from es_ttc.cli.tables import properties
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.following import EnrichmentOptions, follow, forget, unfollow
from es_ttc.enrichment.jobs.record import Budget
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach import attach_beside
from es_ttc.index.attach.feature_locations import FeatureLocation, Indices, contents_of, failures, written_since_fill
from es_ttc.index.attach.map_vectors import require_coarser
from es_ttc.index.ingest.size_estimate import estimate_size
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.index import IndexOptions, analyzer_of, create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.ingest_pipeline import (
    EncodeMode,
    add_pipeline,
    delete_pipeline,
    pipeline_name,
    remove_pipeline,
)
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.index.mappings.write_options import WriteOptions
from es_ttc.lab.evaluation.rankings import ReportStage
from es_ttc.reranking.index_graph import delete_graphs
from es_ttc.settings import Settings
from es_ttc.vectors.codecs import Profile, SkipTokens


@click.group(cls=CommandGroup)
def index() -> None:
    """Create, show, change and delete indices with features."""


@command(
    "es-ttc index create articles --text-fields title,abstract",
    "es-ttc index create articles --language ja --encoder multilingual-e5-small",
    "es-ttc index create articles --codec int8",
    "es-ttc index create articles --chunks --spans scale=10,stride=5",
    group=index,
)
@feature_options
def create(
    name: str,
    /,
    *,
    engine: EngineUrl,
    encoding: EncoderOptions,
    strip_html: StripHtml = "auto",
    shards: Annotated[int | None, Field(ge=1), "Number of primary shards. Default: the engine's own."] = None,
    replicas: Annotated[int | None, Field(ge=0), "Number of replicas. Default: one, if there is a second node."] = None,
    language: Annotated[
        str | None,
        "--language CODE",
        "Language of the text fields as an ISO 639 code (de, ja, ...): they get the engine's analyzer for it. "
        "Default: en.",
    ] = None,
    analyzer: Annotated[
        str | None,
        "--analyzer NAME",
        "Analyzer of the text fields, in place of that of --language, e.g. kuromoji or icu_analyzer.",
    ] = None,
    as_json: AsJson,
    **features: Any,
) -> None:
    """Create the index NAME with the fields for its features. Your own fields stay dynamic."""
    check_storage(click.get_current_context(), features["tokens"])
    settings = encoding.settings(Settings, engine=engine)
    loaded = loaded_encoder(settings, dims=features.pop("dims"))
    stored = with_storage(features) | {"strip_html": strip_html == "yes"}
    spec = IndexSpec(loaded.identity, reversed=features["chunks"] and loaded.distinguishes_roles, **stored)
    size = estimate_size([{spec.text_fields[0]: SAMPLE_TEXT}], spec, loaded)
    options = IndexOptions(analyzer or analyzer_of(language), shards, replicas)
    with_engine(settings, lambda client: _create(client, name, spec, options))
    text = f"made index [{name}], encoder {loaded.identity.key}"
    if size is not None:
        text += f"\n{size_sentence(size, spec)} (estimated for a text of 250 tokens)"
    print_result({"index": name, "spec": spec.as_meta(), "estimate": size and size.as_dict()}, text, as_json=as_json)


@command("es-ttc index show articles --json", group=index)
def show(name: str, /, *, engine: EngineUrl, as_json: AsJson) -> None:
    """Show which features the index NAME has, and how many of its documents lack them."""
    found = with_engine(Settings(**provided(engine=engine)), lambda client: _show(client, name))
    print_result(found, _report(found), as_json=as_json)


@command("es-ttc index requantise articles --codec int2", group=index)
def requantise(
    name: str,
    /,
    *,
    storage: Annotated[Profile | None, STORAGE_HELP] = None,
    codec: Annotated[
        Literal["int8", "int4", "int2"] | None,
        "The new codec, no finer than the present one. Default: that of --storage, and int2 without one.",
    ] = None,
    skip_tokens: Annotated[SkipTokens | None, SKIP_HELP] = None,
    engine: EngineUrl,
    encoder: EncoderName,
    as_json: AsJson,
) -> None:
    """Store the token vectors of the attached index NAME in fewer bytes, without encoding, while it serves.

    A new side index is filled while the old one serves. Documents that have changed since their features were made are
    encoded. Run the command again to resume a stopped run.
    """
    settings = Settings(**provided(engine=engine, encoder=encoder))
    chosen = with_storage({"storage": storage, "codec": codec, "skip_tokens": skip_tokens}) or {"codec": "int2"}
    moved = run_to_completion(
        settings,
        lambda client: _requantise(client, settings, name, chosen),
        f"run `es-ttc index requantise {name}` with the same options to go on",
    )
    text = "\n".join(
        f"[{each['index']}] {each['written']:,} documents are now stored as {each['stored']}, "
        f"{each['unchanged']:,} were already"
        for each in moved
    )
    print_result({"name": name, "indices": moved}, text, as_json=as_json)


@command("es-ttc index delete articles", group=index)
def delete(
    name: str,
    /,
    *,
    yes: Annotated[bool, "Skip the confirmation."] = False,
    engine: EngineUrl,
    as_json: AsJson,
) -> None:
    """Delete the index NAME with its documents and its neighbour graph. Only indices made by es-ttc are deleted."""
    if not yes:
        confirm(f"deleting index [{name}]", f"Delete index [{name}] with all its documents?", as_json=as_json)
    settings = Settings(**provided(engine=engine))
    with_engine(settings, lambda client: _delete(client, settings.jobs_index, name))
    print_result({"index": name, "deleted": True}, f"deleted index [{name}]", as_json=as_json)


@command("es-ttc index enrichment articles", group=index)
def enrichment(
    name: str,
    /,
    *,
    analyzer: Annotated[
        str | None, "--analyzer NAME", "Analyzer of the new field. Default: that of the index's first text field."
    ] = None,
    engine: EngineUrl,
    as_json: AsJson,
) -> None:
    """Add the field for enrichment by a language model to the index NAME. No document changes."""
    made = with_engine(Settings(**provided(engine=engine)), lambda client: add_enrichment(client, name, analyzer))
    text = f"index [{made.index}] has the field of enrichment, analyzer {made.analyzer}"
    print_result({"index": made.index, "analyzer": made.analyzer}, text, as_json=as_json)


@command(
    "es-ttc index pipeline articles --encode later",
    "es-ttc index pipeline articles --encode now --enrich",
    "es-ttc index pipeline articles --encode now --plugin",
    "es-ttc index pipeline articles --wait --on-error fail",
    group=index,
)
def pipeline(
    name: str,
    /,
    *,
    encode: Annotated[
        Literal["now", "later"] | None,
        "Encode the documents that any client writes. later: by `es-ttc worker`, within seconds. now: by the gateway "
        "for writes that pass through it, by workers for all others.",
    ] = None,
    enrich: Annotated[bool, "Also enrich them by a language model, with --encode."] = False,
    plugin: Annotated[
        bool,
        "With --encode: by the plugin's processor; with `now`, documents written to the engine's own port are encoded "
        "before they are indexed.",
    ] = False,
    prompt: Annotated[
        str | None, "--prompt NAME|FILE", "Prompt of the model, with --enrich, as for `es-ttc jobs submit`."
    ] = None,
    budget_tokens: Annotated[int | None, Field(ge=1), "Budget in tokens, with --enrich."] = None,
    wait: Annotated[
        bool, "With the plugin: encode documents before they are indexed. Default: only stamp them."
    ] = False,
    on_error: Annotated[
        Literal["pending", "fail"],
        "Treatment of a document that cannot be encoded, with --wait: index it as pending, or refuse it.",
    ] = "pending",
    timeout: Annotated[str, "Time limit for the gateway, with --wait, or with --encode now --plugin."] = "30s",
    remove: Annotated[bool, "Remove the pipeline, and cancel its jobs."] = False,
    engine: EngineUrl,
    as_json: AsJson,
) -> None:
    """Encode and enrich the documents that any client writes to the index NAME.

    With --encode, the command adds an ingest pipeline of the engine's own processors to NAME (with --plugin, of the
    plugin's), and jobs for `es-ttc worker`. NAME is an index made by es-ttc, or one with attached features. Run it
    again to change the options.

    Without --encode, it runs the plugin's ingest processor on all writes, without jobs.
    """
    settings = Settings(**provided(engine=engine))
    if encode is not None and (wait or remove):
        raise click.UsageError("--encode goes with --enrich only: leave out --wait and --remove")
    if enrich and encode is None:
        raise click.UsageError("--enrich needs --encode: give `--encode later --enrich`")
    if plugin and encode is None:
        raise click.UsageError("--plugin needs --encode: give `--encode now --plugin`, or leave it out")
    if (prompt, budget_tokens) != (None, None) and not enrich:
        raise click.UsageError("--prompt and --budget-tokens go with --enrich: add it, or leave them out")
    if remove:
        removed = with_engine(settings, lambda client: _remove_pipeline(client, settings.jobs_index, name))
        text = f"index [{name}] has no ingest processor" + (" any more" if removed else "")
        print_result({"index": name, "removed": removed}, text, as_json=as_json)
        return
    if encode is not None:
        enrichment = EnrichmentOptions(prompt, Budget(tokens=budget_tokens, cost=None)) if enrich else None
        within = timeout if plugin else None
        followed = with_engine(
            settings, lambda client: follow(client, settings, name, encode, enrichment, plugin_timeout=within)
        )
        indices = [each.as_dict() for each in followed]
        text = "\n".join(_followed_sentence(each) for each in indices)
        print_result({"indices": indices}, text, as_json=as_json)
        return
    mode = EncodeMode(on_error, timeout) if wait else None
    made = with_engine(settings, lambda client: add_pipeline(client, name, mode))
    done = "encoded before they are indexed" if wait else "stamped; `es-ttc fill` encodes them"
    text = f"documents written to [{made['index']}] are {done} (pipeline [{made['pipeline']}])"
    print_result(made, text, as_json=as_json)


async def _remove_pipeline(engine: Engine, jobs_index: str, name: str) -> bool:
    if await unfollow(engine, jobs_index, name):
        return True
    locations = (await Indices.behind(engine, name)).features()
    if any(held.side for held in locations):
        return False  # the plugin's processor runs only on indices made by es-ttc
    return await remove_pipeline(engine, name)


def _followed_sentence(followed: dict[str, Any]) -> str:
    if followed["encode"] == "later":
        first = "by"
    elif followed["plugin"]:
        first = "before they are indexed, and where that fails by"
    else:
        first = "by the gateway, if they pass through it, and else by"
    lines = [f"documents written to [{followed['index']}] are encoded {first} job {followed['encoding']['id']}"]
    if followed["pipeline"]:
        lines[0] += f" (pipeline [{followed['pipeline']}])"
    if followed["enrichment"]:
        lines.append(f"and enriched by job {followed['enrichment']['id']}")
        if followed["enrichment"]["reason"]:
            lines[-1] += f", which is {followed['enrichment']['state']}: {followed['enrichment']['reason']}"
    lines.append("`es-ttc worker` does the work; `es-ttc jobs list` shows it")
    return "\n".join(lines)


async def _create(engine: Engine, name: str, spec: IndexSpec, options: IndexOptions) -> None:
    if await engine.exists(name):
        raise InvalidRequest(f"index [{name}] exists already: see `es-ttc index show {name}`, or choose a name")
    await create_index(engine, name, spec, options)


async def _requantise(engine: Engine, settings: Settings, name: str, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    locations = (await Indices.behind(engine, name)).features()
    for held in locations:
        if not held.side:
            raise InvalidRequest(
                f"index [{held.index}] was made by es-ttc, and the storage of its documents stays: make it anew, with "
                "`es-ttc index create NAME` and `es-ttc ingest`"
            )
        require_coarser(held.spec, replace(held.spec, **chosen), held.source.index)
    with stages("storage") as progress:
        return [
            await _requantise_one(engine, settings, held, replace(held.spec, **chosen), progress) for held in locations
        ]


async def _requantise_one(
    engine: Engine, settings: Settings, held: FeatureLocation, spec: IndexSpec, progress: ReportStage
) -> dict[str, Any]:
    """Move the features of one index into a new side index."""

    def report(counts: Any) -> None:
        progress(held.source.index, counts.seen, counts.total)

    encoder = await asyncio.to_thread(loaded_encoder, settings, held.spec.encoder)
    filled = await attach_beside(engine, held.source, spec, encoder, report=report)
    written = filled.carried + filled.written
    stored = described_storage(spec)
    return {"index": filled.index, "stored": stored, "written": written, "unchanged": filled.unchanged}


async def _show(engine: Engine, name: str) -> dict[str, Any]:
    held = (await Indices.behind(engine, name)).only()
    counts = await contents_of(engine, held) if held.side else await contents(engine, held.index, held.spec)
    writes = WriteOptions.of(held.holder.mapping)
    return {
        "index": held.source.index,
        "side_index": held.index if held.side else None,
        "writes": writes and {"encode": writes.encode, "enrich": writes.enrich, "plugin": writes.plugin},
        "spec": held.spec.as_meta(),
        "on_demand": held.on_demand,
        **asdict(counts),
        "written_since_fill": await written_since_fill(engine, held) if held.side else None,
        "failures": await failures(engine, held.index) if counts.states.get("failed") else {},
    }


async def _delete(engine: Engine, jobs_index: str, name: str) -> None:
    concrete = (await Index.own(engine, name)).index
    await delete_graphs(engine, concrete)
    await engine.delete_index(concrete)
    await delete_pipeline(engine, pipeline_name(concrete))
    await forget(engine, jobs_index, concrete)


def _report(found: dict[str, Any]) -> Table:
    spec = found["spec"]
    scales = ", ".join(f"{scale:g}" if isinstance(scale, int | float) else scale for scale in spec["scales"])
    spans = "; ".join(f"scale {grid['scale']:g}, every {grid['stride']} tokens" for grid in spec.get("spans", ()))
    states = ", ".join(f"{count:,} {state}" for state, count in found["states"].items()) or "none"
    rows = {
        "index": found["index"],
        "encoder": _encoder(spec["encoder"]),
        "text fields": ", ".join(spec["text_fields"]),
        "token vectors": _stored(spec),
        "scales": scales,
        "spans": spans or "none",
        "documents": f"{found['documents']:,}",
        "by state": states,
        "lacking features": f"{found['lacking']:,}",
        "encoded share": encoded_share(found["documents"], found["lacking"]),
        "of another encoder": f"{found['other_encoder']:,}",
        "on disk": mebibytes(found["bytes"]),
    }
    if found["side_index"]:
        rows["side index"] = found["side_index"] + (", encoded on demand" if found["on_demand"] else "")
        rows["written since its fill"] = f"{found['written_since_fill']:,}"
    if found["writes"]:
        enriched = " and enriched" if found["writes"]["enrich"] else ""
        processor = ", by the plugin's processor" if found["writes"]["plugin"] else ""
        rows["writes of clients"] = f"encoded {found['writes']['encode']}{enriched}{processor}"
    for identifier, reason in found["failures"].items():
        rows[f"failed: {identifier}"] = reason
    return properties(rows)


def _encoder(identity: dict[str, Any]) -> str:
    late = ", late interaction" if identity.get("late") else ""
    return f"{identity['model']}, {identity['dims']} dimensions{late}"


def _stored(spec: dict[str, Any]) -> str:
    if spec["tokens"] == "none":
        return "none"
    codec = spec["codec"] if spec["tokens"] == "packed" else spec["tokens"]
    skipped = without_tokens(spec.get("skip_tokens", "none"))
    stripped = ", without markup" if spec.get("strip_html") else ""
    return f"{codec}{skipped}, up to {spec['max_tokens']} a document{stripped}"
