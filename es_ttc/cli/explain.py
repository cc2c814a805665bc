"""`es-ttc explain`: why a document stands where it does in a search."""

from typing import Annotated, Any

from pydantic import Field

from es_ttc.cli import tables
from es_ttc.cli.common import AdapterName, AsJson, EngineUrl, adapted, given, print_json, stderr, with_engine
from es_ttc.cli.options import Filter, GatewayUrl
from es_ttc.cli.search import encoder_of_index, gateway_with
from es_ttc.cli.searching import CliQuery, Target, match_body
from es_ttc.cli.signatures import command
from es_ttc.engine.protocol import Engine
from es_ttc.settings import GatewaySettings


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
    engine: EngineUrl,
    adapter: AdapterName,
    gateway: GatewayUrl = None,
    as_json: AsJson,
) -> None:
    """Tell why a document is where it is in a search of the index NAME for TEXT, or why it is not found.

    It says whether the query matches the document and at which rank, the document's rank under each signal, which
    filter drops it, which words of TEXT it lacks, whether it has features, and the least change of one of blend's
    weights that would bring it to the first page. `POST /_ttc/explain` does the same for any body of a search.
    """

    async def ask(client: Engine) -> dict[str, Any]:
        target = await Target.of(client, name)
        search = match_body(target.fields, CliQuery(text, method, size, among=among))
        search["rescore"] = {"ttc": {"method": method, "query_text": text}}
        body = {"index": name, "id": document, "search": search}
        found: dict[str, Any] = await client.request("POST", "/_ttc/explain", body=body)
        return found

    settings = adapted(GatewaySettings(**given(engine=engine, port=0)), adapter)
    with stderr.status("searching"):
        encoder = encoder_of_index(settings, name) if gateway is None else None
        with gateway_with(settings, gateway, encoder) as at_gateway:
            told = with_engine(at_gateway, ask)
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
