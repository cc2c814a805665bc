"""`es-ttc ui`: a gateway with the playground in front of an engine, in one command."""

import asyncio
import os
import sys
import webbrowser
from typing import Annotated

import click
from pydantic import Field

from es_ttc.cli.common import EngineUrl, given
from es_ttc.cli.serve import look, page_address
from es_ttc.cli.signatures import command
from es_ttc.encoders.registry import require_known
from es_ttc.playground import playground_routes
from es_ttc.serving.server import address_of, bind, serve
from es_ttc.settings import GatewaySettings


@command("es-ttc ui", "es-ttc ui articles", "es-ttc ui articles --engine https://search.example.org:9200")
def ui(
    index: str = "",
    /,
    *,
    engine: EngineUrl,
    port: Annotated[int, Field(ge=0, le=65535), "Port to listen on. Default: any free port."] = 0,
    no_browser: Annotated[bool, "Print the page's address without opening it."] = False,
) -> None:
    """Open the playground: search an index, compare methods side by side, and judge results.

    A gateway of its own, on this machine only, serves the page until Ctrl-C. The page asks for the engine's
    credentials if the engine wants some.
    """
    settings = GatewaySettings(**given(engine=engine), host="127.0.0.1", port=port, workers=1, ui=True)
    for name in (settings.encoder, *settings.encoders):
        require_known(name)
    with bind(settings) as listening:
        engine_url, reachable, _ = asyncio.run(look(settings))
        page = page_address(address_of(listening, tls=settings.tls_cert is not None), index)
        click.echo(f"{page}\nengine at {engine_url}; Ctrl-C stops it")
        if not reachable:
            click.echo(f"es-ttc: no engine answers at {engine_url} yet: the page says so until it does", err=True)
        if not no_browser and has_browser():
            webbrowser.open(page)  # the socket listens: the browser waits until the gateway has started
        serve(settings, listening, playground_routes)


def has_browser() -> bool:
    """Return whether there is a screen for a browser: one of the terminal would take the command's own."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
