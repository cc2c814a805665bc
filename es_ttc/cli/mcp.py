"""`es-ttc mcp`: search as tools for agents, by the Model Context Protocol."""

from contextlib import ExitStack
from typing import Annotated

from pydantic import Field

from es_ttc.cli.common import EngineUrl, provided
from es_ttc.cli.model_options import command
from es_ttc.errors import ConfigurationError
from es_ttc.settings import GatewaySettings


@command(
    "es-ttc mcp --gateway http://127.0.0.1:9280",
    "es-ttc mcp --engine http://127.0.0.1:9200",
    "es-ttc mcp --gateway https://search.example.org --http --port 9290",
)
def mcp(
    *,
    engine: EngineUrl,
    gateway: Annotated[
        str | None, "--gateway URL", "URL of a running gateway. Default: one of its own, in front of the engine."
    ] = None,
    over_http: Annotated[bool, "--http", "Serve by HTTP at /mcp. Default: standard input and output."] = False,
    host: Annotated[str, "--host ADDRESS", "Address for --http."] = "127.0.0.1",
    port: Annotated[int, Field(ge=1, le=65535), "Port for --http."] = 9290,
) -> None:
    """Offer search to agents as tools of the Model Context Protocol.

    The tools list indices and methods, search, read documents, and explain their ranks; none writes. On standard input
    and output they use the credentials of the settings (ES_TTC_API_KEY, ...); with --http those of each request's
    Authorization header, and none without one.
    """
    try:
        from es_ttc.agents import make_server
    except ModuleNotFoundError as error:
        raise ConfigurationError("the Model Context Protocol needs its SDK: pip install 'es-ttc[mcp]'") from error
    from es_ttc.serving.logs import configure_logs
    from es_ttc.serving.server import running_gateway

    settings = GatewaySettings(**provided(engine=engine, port=0))
    configure_logs()
    with ExitStack() as stack:
        url = gateway or stack.enter_context(running_gateway(settings))
        server = make_server(settings.model_copy(update={"engine": url}), forwards=over_http)
        if over_http:
            server.run("streamable-http", host=host, port=port, stateless_http=True, json_response=True)
        else:
            server.run("stdio")
