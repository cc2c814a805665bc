"""`es-ttc graph`: the neighbour graph of an index."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

import click
from pydantic import Field

from es_ttc.cli.common import (
    AsJson,
    EngineUrl,
    confirm,
    mebibytes,
    print_result,
    provided,
    run_to_completion,
    with_engine,
)
from es_ttc.cli.evaluating import stages
from es_ttc.cli.model_options import CommandGroup, command
from es_ttc.engine.protocol import Engine
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import (
    BuildProgress,
    GraphReport,
    build_graph,
    delete_graphs,
    show_graph,
    update_graph,
)
from es_ttc.settings import Settings


@click.group(cls=CommandGroup)
def graph() -> None:
    """Build and maintain the neighbour graph of an index.

    The methods gar, slidegar and rgs use the graph.
    """


@command(
    "es-ttc graph build articles",
    "es-ttc graph build articles --degree 32",
    "es-ttc graph build articles --builder engine",
    group=graph,
)
def build(
    name: str,
    /,
    *,
    degree: Annotated[int, Field(ge=1, le=256), "Maximum number of neighbours per document (R)."] = 16,
    builder: Annotated[
        Literal["vectors", "engine"],
        "vectors: read and compare vectors (all pairs up to 50,000 documents, usearch above). engine: the engine's "
        "own kNN, unpruned.",
    ] = "vectors",
    engine: EngineUrl,
    as_json: AsJson,
) -> None:
    """Build the neighbour graph of the index NAME from its documents' vectors.

    The graph is stored in a hidden index. Nothing in NAME changes. An existing graph serves until the new one is
    complete; then searches switch to it in one step. Run the command again to resume a stopped run.
    `es-ttc graph update` applies later changes of documents.

    Exit status: 0 when it is complete; 1 when it failed; 130 when it was stopped.
    """
    params = GraphParams(degree=degree)
    built = run_to_completion(
        Settings(**provided(engine=engine)),
        lambda client: _build(client, name, params, builder),
        f"run `es-ttc graph build {name}` with the same options to go on",
    )
    resumed = f", {built.resumed:,} of them by an earlier run" if built.resumed else ""
    text = (
        f"[{built.index}] has a graph of {built.total:,} documents ({built.builder}{resumed}) in "
        f"{built.seconds['total']:,.1f} s, {built.seconds['reading']:,.1f} s of it for reading vectors"
    )
    print_result(asdict(built), text, as_json=as_json)


@command("es-ttc graph update articles", group=graph)
def update(name: str, /, *, engine: EngineUrl, as_json: AsJson) -> None:
    """Update the neighbour graph of the index NAME around written, changed or deleted documents.

    Exit status: 0 when it is up to date; 1 when it failed; 130 when it was stopped (run it again).
    """
    settings, how = Settings(**provided(engine=engine)), f"run `es-ttc graph update {name}` to go on"
    updated = run_to_completion(settings, lambda client: update_graph(client, name), how)
    text = f"[{updated.index}] nothing has changed: the graph is up to date"
    if updated.written or updated.deleted:
        text = (
            f"[{updated.index}] {updated.written:,} documents written, {updated.deleted:,} gone; the neighbours of "
            f"{updated.rewired:,} are other than before, in {updated.seconds:,.1f} s"
        )
    print_result(asdict(updated), text, as_json=as_json)


@command("es-ttc graph show articles", group=graph)
def show(name: str, /, *, engine: EngineUrl, as_json: AsJson) -> None:
    """Show statistics of the neighbour graph of the index NAME.

    They are degrees, components, reachability and staleness.
    """
    found = with_engine(Settings(**provided(engine=engine)), lambda client: show_graph(client, name))
    data = {**asdict(found), "meta": found.meta.model_dump(mode="json"), "stale": found.stale}
    print_result(data, "\n".join(_lines(found)), as_json=as_json)


@command("es-ttc graph delete articles", group=graph)
def delete(
    name: str,
    /,
    *,
    yes: Annotated[bool, "Skip the confirmation."] = False,
    engine: EngineUrl,
    as_json: AsJson,
) -> None:
    """Delete the neighbour graph of the index NAME.

    Incomplete graphs are deleted too. Nothing in NAME changes.
    """
    if not yes:
        confirm(f"deleting the graph of [{name}]", f"Delete the neighbour graph of [{name}]?", as_json=as_json)

    deleted = with_engine(Settings(**provided(engine=engine)), lambda client: delete_graphs(client, name))
    text = f"deleted {', '.join(deleted)}" if deleted else f"[{name}] has no neighbour graph"
    print_result({"index": name, "deleted": deleted}, text, as_json=as_json)


async def _build(engine: Engine, name: str, params: GraphParams, builder: Any) -> BuildProgress:
    with stages(name) as progress:
        return await build_graph(
            engine,
            name,
            params,
            builder=builder,
            report=lambda built: progress(built.doing, built.done, built.total),
        )


def _lines(found: GraphReport) -> list[str]:
    figures, params = found.figures, found.meta.params
    least, median, most = figures.out_degrees
    in_least, in_median, in_most = figures.in_degrees
    components = ", ".join(f"{size:,}" for size in figures.components[:5]) or "none"
    more = f" and {len(figures.components) - 5:,} more" if len(figures.components) > 5 else ""
    far = next((step for step in range(len(found.reach.steps)) if sum(found.reach.steps[: step + 1]) >= 0.9), None)
    nine = f", nine tenths of the documents within {far} steps" if far is not None else ""
    stale = (
        f"{found.written_since:,} documents were written since, the index has {found.documents:,} with vectors: run "
        f"`es-ttc graph update {found.index}`"
        if found.stale
        else "up to date"
    )
    lines = [
        f"graph of    {found.index}, in {found.graph} ({mebibytes(found.bytes)})",
        f"made        by {found.meta.builder}, degree {params.degree}, {params.candidates} candidates, "
        f"alpha {params.alpha:g}, of {found.meta.encoder}",
        f"documents   {figures.documents:,}, edges {figures.edges:,}",
        f"neighbours  {least} to {most}, median {median:g}; is a neighbour of {in_least} to {in_most}, "
        f"median {in_median:g}",
        f"components  of {components}{more} documents; alone {figures.isolated:,}",
        f"reach       {found.reach.share:.1%} from {found.reach.seeds} random documents{nine}",
        f"state       {stale}",
    ]
    if found.dangling:
        lines.append(f"dangling    {found.dangling:,} edges lead to documents that the graph does not have")
    lines += [f"unfinished  {name}" for name in found.others]
    return lines
