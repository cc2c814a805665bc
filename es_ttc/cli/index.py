"""`es-ttc index`: make, show and delete indices that carry features."""

import asyncio
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.table import Table
from rich.text import Text

from es_ttc.cli.common import (
    adapted,
    adapter_flag,
    connected,
    encoder_flag,
    engine_flag,
    given,
    json_flag,
    print_json,
    progress_bar,
    stderr,
    stdout,
)
from es_ttc.cli.options import SpanGridType, codec_option, max_tokens_option, text_fields_flag
from es_ttc.settings import Settings

if TYPE_CHECKING:
    from es_ttc.encoders.base import Encoder
    from es_ttc.mappings.index import IndexOptions
    from es_ttc.mappings.spec import IndexSpec, SpanGrid
    from es_ttc.vectors.residual import Bits


def _scales(context: click.Context, option: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    return None if value is None else tuple(_scale(part.strip(), context, option) for part in value.split(","))


def _scale(value: str, context: click.Context, option: click.Parameter) -> float:
    if value == "mean":
        return math.inf
    try:
        scale = float(value)
    except ValueError:
        scale = math.nan
    if not 1 <= scale < math.inf:
        raise click.BadParameter(f"[{value}] is no scale: give numbers from 1, or mean", context, option)
    return scale


@click.group()
def index() -> None:
    """Make, show and delete indices that carry features."""


@index.command()
@click.argument("name")
@engine_flag
@encoder_flag
@adapter_flag
@click.option("--dims", type=click.IntRange(1), help="Keep the vectors' first so many dimensions (Matryoshka models).")
@click.option(
    "--tokens",
    type=click.Choice(["packed", "nested", "rank_vectors", "none"]),
    default="packed",
    show_default=True,
    help="How token vectors are stored: one blob a document; one nested vector a token (large and slow, but plain "
    "engine features); Elasticsearch's own rank_vectors (Enterprise licence); `none` leaves pooled vectors only.",
)
@codec_option(
    "int8",
    " in a blob",
    {"residual2": "a quarter of a byte, beside the nearest centroid (needs --sample)", "residual4": "half a byte, so"},
)
@click.option(
    "--sample",
    metavar="FILE",
    help="Documents that the centroids of residual2 and residual4 are learned from: the first 1,000 of the file.",
)
@click.option(
    "--blobs",
    type=click.Choice(["stored", "doc_values"]),
    default="stored",
    show_default=True,
    help="Where blobs stand; doc_values for an index with the codec best_compression.",
)
@click.option(
    "--scales",
    callback=_scales,
    metavar="L,...",
    help="Scales whose norms are stored, `mean` among them. Default: 1,3,5,7,10,15,20,30,mean.",
)
@click.option(
    "--spans",
    multiple=True,
    type=SpanGridType(),
    metavar="scale=L,stride=S",
    help="Also keep smoothed spans as nested vectors, for token-level kNN in the engine: width L, every S tokens (half "
    "of L unless given). May be given several times.",
)
@text_fields_flag
@max_tokens_option(65_536)
@click.option("--shards", type=click.IntRange(1), help="Primary shards. Default: the engine's own.")
@click.option("--replicas", type=click.IntRange(0), help="Replicas. Default: one, once there is a second node.")
@click.option(
    "--analyzer",
    default="english",
    show_default=True,
    help="Analyzer of the text fields; `standard` for other languages.",
)
@json_flag
def create(
    name: str,
    engine: str | None,
    encoder: str | None,
    adapter: str | None,
    dims: int | None,
    tokens: Any,
    codec: Any,
    sample: str | None,
    blobs: Any,
    scales: tuple[float, ...] | None,
    spans: "tuple[SpanGrid, ...]",
    text_fields: tuple[str, ...] | None,
    max_tokens: int,
    shards: int | None,
    replicas: int | None,
    analyzer: str,
    as_json: bool,
) -> None:
    """Make the index NAME with the fields that its features need; your own fields stay dynamic."""
    from es_ttc.encoders import load_encoder
    from es_ttc.mappings.index import IndexOptions
    from es_ttc.mappings.spec import RESIDUAL_BITS, IndexSpec

    told = click.get_current_context().get_parameter_source("codec") is ParameterSource.COMMANDLINE
    if told and tokens != "packed":
        raise click.UsageError(f"--codec goes with --tokens packed, not with {tokens}: leave it out")
    if (codec in RESIDUAL_BITS) != (sample is not None):
        raise click.UsageError("--codec residual2 or residual4 and --sample FILE go together: give both or neither")
    settings = adapted(Settings(**given(engine=engine, encoder=encoder)), adapter)
    with stderr.status("loading the encoder"):
        loaded = load_encoder(settings.encoder, cache_dir=settings.cache_dir, dims=dims)
    spec = IndexSpec(
        loaded.identity,
        tokens=tokens,
        max_tokens=max_tokens,
        spans=spans,
        blobs=blobs,
        **given(scales=scales, text_fields=text_fields),
    )
    if tokens == "packed":
        codebook = _codebook(sample, spec, loaded, RESIDUAL_BITS[codec]) if sample else b""
        spec = replace(spec, codec=codec, codebook=codebook)
    asyncio.run(_create(settings, name, spec, IndexOptions(analyzer, shards, replicas)))
    if as_json:
        print_json({"index": name, "spec": spec.as_shown()})
    else:
        click.echo(f"made index [{name}], encoder {loaded.identity.key}")


@index.command()
@click.argument("name")
@engine_flag
@json_flag
def show(name: str, engine: str | None, as_json: bool) -> None:
    """Show what the index NAME carries, and which of its documents lack it."""
    found = asyncio.run(_show(Settings(**given(engine=engine)), name))
    if as_json:
        print_json(found)
    else:
        stdout.print(_report(found))


@index.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@engine_flag
@json_flag
def delete(name: str, yes: bool, engine: str | None, as_json: bool) -> None:
    """Delete the index NAME with all its documents; only indices made by es-ttc are deleted."""
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise click.UsageError(f"deleting index [{name}] needs --yes where nobody can be asked")
        click.confirm(f"Delete index [{name}] with all its documents?", abort=True, err=True)
    asyncio.run(_delete(Settings(**given(engine=engine)), name))
    if as_json:
        print_json({"index": name, "deleted": True})
    else:
        click.echo(f"deleted index [{name}]")


def _codebook(sample: str, spec: "IndexSpec", encoder: "Encoder", bits: "Bits") -> bytes:
    from es_ttc.ingest.readers import Inputs, open_source
    from es_ttc.ingest.sample import DOCUMENTS, learn_codebook

    records = Inputs([open_source(sample)]).peek(DOCUMENTS)
    documents = [record.document for record in records if record.document]
    with progress_bar() as bar:
        task = bar.add_task("learning from the sample", total=len(documents))
        return learn_codebook(documents, spec.text_fields, encoder, bits, lambda done: bar.update(task, completed=done))


async def _create(settings: Settings, name: str, spec: "IndexSpec", options: "IndexOptions") -> None:
    from es_ttc.errors import InvalidRequest
    from es_ttc.mappings.index import create_index

    async with connected(settings) as engine:
        if await engine.exists(name):
            raise InvalidRequest(f"index [{name}] exists already: see `es-ttc index show {name}`, or choose a name")
        await create_index(engine, name, spec, options)


async def _show(settings: Settings, name: str) -> dict[str, Any]:
    from es_ttc.mappings.contents import contents
    from es_ttc.mappings.index import resolve_index

    async with connected(settings) as engine:
        concrete, spec = await resolve_index(engine, name)
        return {"index": concrete, "spec": spec.as_shown(), **(await contents(engine, concrete, spec)).as_dict()}


async def _delete(settings: Settings, name: str) -> None:
    from es_ttc.mappings.index import resolve_index

    async with connected(settings) as engine:
        concrete, _ = await resolve_index(engine, name)
        await engine.delete_index(concrete)


def _report(found: dict[str, Any]) -> Table:
    spec = found["spec"]
    scales = ", ".join(f"{scale:g}" if isinstance(scale, int | float) else scale for scale in spec["scales"])
    spans = "; ".join(f"scale {grid['scale']:g}, every {grid['stride']} tokens" for grid in spec.get("spans", ()))
    states = ", ".join(f"{count:,} {state}" for state, count in found["states"].items()) or "none"
    rows = {
        "index": found["index"],
        "encoder": f"{spec['encoder']['model']}, {spec['encoder']['dims']} dimensions",
        "text fields": ", ".join(spec["text_fields"]),
        "token vectors": _stored(spec),
        "scales": scales,
        "spans": spans or "none",
        "documents": f"{found['documents']:,}",
        "by state": states,
        "lacking features": f"{found['lacking']:,}",
        "of another encoder": f"{found['other_encoder']:,}",
        "on disk": f"{found['bytes'] / 2**20:,.1f} MiB",
    }
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, value in rows.items():
        table.add_row(Text(label, "bold"), Text(value))
    return table


def _stored(spec: dict[str, Any]) -> str:
    if spec["tokens"] == "none":
        return "none"
    codec = spec["codec"] if spec["tokens"] == "packed" else spec["tokens"]
    if "codebook" in spec:
        codec += f" ({spec['codebook']['centroids']} centroids)"
    where = " in doc values" if spec.get("blobs") == "doc_values" else ""
    return f"{codec}{where}, up to {spec['max_tokens']} a document"
