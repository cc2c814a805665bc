"""`es-ttc explain`: why a document stands where it does in a search."""

from contextlib import ExitStack
from typing import Any

import click

from es_ttc.cli import tables
from es_ttc.cli.common import adapted, adapter_flag, engine_flag, given, json_flag, print_json, stderr, with_engine
from es_ttc.cli.options import FilterType, examples
from es_ttc.cli.search import check_encoder
from es_ttc.settings import GatewaySettings


@click.command(
    epilog=examples(
        'es-ttc explain articles "insulin resistance in mice" --id 4983',
        'es-ttc explain articles "heart attack" --id 4983 --filter "year>=2020" --gateway http://127.0.0.1:9280',
    ),
)
@click.argument("name")
@click.argument("text")
@click.option("--id", "document", required=True, metavar="ID", help="Id of the document.")
@click.option("--method", default="blend", show_default=True, help="Method of `rescore`.")
@click.option(
    "--filter",
    "among",
    type=FilterType('{"term": {"group": "news"}}'),
    help="What every hit must match: 'price<=100 and brand=Acme', or a query of the engine as JSON.",
)
@click.option("--size", type=click.IntRange(1, 100), default=10, show_default=True, help="Number of hits of a page.")
@engine_flag
@adapter_flag
@click.option("--gateway", metavar="URL", help="URL of a running gateway. Default: a temporary one.")
@json_flag
def explain(
    name: str,
    text: str,
    document: str,
    method: str,
    among: dict[str, Any] | None,
    size: int,
    engine: str | None,
    adapter: str | None,
    gateway: str | None,
    as_json: bool,
) -> None:
    """Tell why a document is where it is in a search of the index NAME for TEXT, or why it is not found.

    It says whether the query matches the document and at which rank, the document's rank under each signal, which
    filter drops it, which words of TEXT it lacks, whether it has features, and the least change of one of blend's
    weights that would bring it to the first page. `POST /_ttc/explain` does the same for any body of a search.
    """
    from es_ttc.index.attach.feature_locations import alike_locations
    from es_ttc.index.mappings.encoder import load_encoder_for
    from es_ttc.index.mappings.queries import matching
    from es_ttc.serving.server import running_gateway

    settings = adapted(GatewaySettings(**given(engine=engine, port=0)), adapter)
    spec = with_engine(settings, lambda client: alike_locations(client, name))[0].spec
    query = matching(text, spec.text_fields)
    if among is not None:
        query = {"bool": {"must": [query], "filter": [among]}}
    search = {"query": query, "size": size, "rescore": {"ttc": {"method": method, "query_text": text}}}
    body = {"index": name, "id": document, "search": search}
    with stderr.status("searching"), ExitStack() as stack:
        if gateway is None:
            loaded = load_encoder_for(spec.encoder, settings.encoder, cache_dir=settings.cache_dir)
            check_encoder(name, spec, loaded)
            gateway = stack.enter_context(running_gateway(settings, load=lambda _name, _folder: loaded))
        at_gateway = settings.model_copy(update={"engine": gateway})
        told: dict[str, Any] = with_engine(
            at_gateway, lambda client: client.request("POST", "/_ttc/explain", body=body)
        )
    if as_json:
        print_json(told)
        return
    console = tables.console()
    for sentence in told["reasons"]:
        console.print(f"- {sentence}", markup=False, highlight=False, soft_wrap=True)
    rows = [
        (signal, *("" if one[key] is None else f"{one[key]:.4g}" for key in ("score", "rank")))
        for signal, one in told["signals"].items()
    ]
    if rows:
        console.print(tables.table(("signal", "score", f"rank of {told['found']}"), rows))
