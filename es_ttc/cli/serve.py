"""`es-ttc serve` and `es-ttc ui`: the gateway in the foreground, the latter with its page open."""

import asyncio
import os
import shlex
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import click
import orjson
from pydantic import Field

from es_ttc.cli.common import AsJson, EngineUrl, engine_flag, print_json, provided, sample_documents, unread_languages
from es_ttc.cli.model_options import FILE_PATH, command, flags, model_options
from es_ttc.encoders.query_adapters import QueryAdapters
from es_ttc.encoders.registry import require_known
from es_ttc.engine.connect import connected
from es_ttc.engine.versions import EngineVersion, oldest_versions
from es_ttc.errors import ConfigurationError, EngineError, EngineUnavailable, EsTtcError, InvalidRequest
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.attach.side_index import attached_sources
from es_ttc.index.mappings.indices import mappings_with_features, no_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.playground import playground_routes
from es_ttc.playground.pages import lacks_libraries
from es_ttc.rescorers.learned.model import read_models
from es_ttc.rescorers.tuned import TunedDefaults
from es_ttc.serving.gateway import promoted_programs
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.launch import serve_with_workers
from es_ttc.serving.logs import configure_logs
from es_ttc.serving.server import address_of, bind, server_certificate
from es_ttc.serving.server import serve as run
from es_ttc.serving.trial import require_trial_possible
from es_ttc.settings import GatewaySettings

_LACKS_LIBRARIES = (
    "the page's libraries are not there: install npm (Node.js 20 or newer), run `python release/vendor.py` in the "
    "checkout, and install es-ttc from it again"
)
_LOOK_SECONDS = 3.0
_MAX_NAMED = 20


_FILE, _EXISTING = click.Path(dir_okay=False, path_type=Path), click.Path(file_okay=False, exists=True, path_type=Path)
_gateway_options = model_options(
    "Gateway",
    GatewaySettings,
    flags("host", "port", "tls_cert", "tls_key", "workers", "programs", "ranking_models", "ui"),
    types={"tls_cert": _FILE, "tls_key": _FILE, "programs": _EXISTING, "ranking_models": _EXISTING},
    unset=True,
)


@command(
    "es-ttc serve",
    "es-ttc serve --engine https://search.example.org:9200 --encoder minilm",
    "es-ttc serve --tuned nnn.json --programs /etc/es-ttc/programs",
)
@engine_flag
@_gateway_options
def serve(
    *,
    encoders: Annotated[
        tuple[str, ...],
        "--encoder NAME",
        "Encoder: minilm, bge-small, e5-small, mpnet, multilingual-e5-small, any model name, or a folder; "
        "NAME+ADAPTER with a LoRA adapter. May be given several times, for indices written with others.",
    ] = (),
    tuned: Annotated[
        tuple[Path, ...],
        FILE_PATH,
        "File of one method's parameters, written by `es-ttc tune`, for requests that give none; or of an index's "
        "relevance, written by `es-ttc calibrate relevance`. May be given several times.",
    ] = (),
    as_json: AsJson,
    **options: Any,
) -> None:
    """Run the gateway in front of the engine.

    Clients use the gateway's address instead of the engine's. Searches with a `ttc` section are rescored, all other
    requests are forwarded unchanged.
    """
    first, *others = encoders or (None,)
    given_settings = provided(encoder=first, encoders=tuple(others) or None, tuned=tuned or None, **options)
    settings = GatewaySettings(**given_settings)
    tls = server_certificate(settings) is not None
    for name in (settings.encoder, *settings.encoders):
        require_known(name)
    served = {**read_models(settings.ranking_models), **promoted_programs(settings)[1]}
    TunedDefaults.read(settings.tuned, served)  # errors in them are reported before the gateway listens
    QueryAdapters.read(settings.query_adapters, settings.cache_dir)
    require_trial_possible(settings)
    configure_logs()
    with bind(settings) as listening:
        url = address_of(listening, tls=tls)
        engine_url, reachable, version = asyncio.run(look(settings))
        indices, unread = asyncio.run(searchable(settings)) if reachable else ({}, {})
        if as_json:
            page = {"ui": page_address(url)} if settings.ui else {}
            known = {"engine": engine_url, "engine_reachable": reachable, "indices": list(indices)}
            print_json({"url": url, **known, **page})
        else:
            running = f"{engine_url} ({version})" if version else engine_url
            _introduce(settings, url, running, indices, unread)
        for sentence in warnings(settings, url, engine_url, version, reachable=reachable):
            click.echo(f"es-ttc: {sentence}", err=True)
        if sys.platform == "win32":
            run(settings, listening, playground_routes)
        else:
            further = f"{playground_routes.__module__}:{playground_routes.__qualname__}"
            serve_with_workers(settings, listening.fileno(), given_settings, further)


def warnings(
    settings: GatewaySettings, url: str, engine_url: str, version: EngineVersion | None, *, reachable: bool
) -> Iterator[str]:
    """Yield what an operator must know of the gateway that begins."""
    if not reachable:
        fix = "" if engine_url.startswith("https:") else " (start one with `es-ttc engine up`)"
        yield f"no engine answers at {engine_url} yet: the gateway answers 503 until it does{fix}"
    if settings.ui and lacks_libraries():
        yield _LACKS_LIBRARIES
    if settings.aws_sign_callers:
        yield (
            f"callers' requests are signed with the gateway's AWS credentials: whoever reaches {url} has their rights"
        )
    if version is not None and version.too_old:
        yield (
            f"the engine runs {version}, which is too old: requests are forwarded unchanged, and searches with a "
            f"section `ttc` are refused; {oldest_versions()} or newer is needed"
        )


async def look(settings: GatewaySettings) -> tuple[str, bool, EngineVersion | None]:
    """Return the engine's address without credentials, whether it answers, and its version if it tells."""
    async with Upstream(settings) as upstream:
        if not await upstream.reachable(_LOOK_SECONDS):
            return upstream.url, False, None
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                return upstream.url, True, await upstream.version(upstream.service_headers())
        except (EngineUnavailable, TimeoutError):
            return upstream.url, False, None


async def searchable(settings: GatewaySettings) -> tuple[dict[str, IndexSpec], dict[str, tuple[str, ...]]]:
    """Return the specs of the indices with features that the gateway's own credentials can see.

    And the languages of their first documents that their encoders are not trained for.
    """
    found: dict[str, IndexSpec] = {}
    unread: dict[str, tuple[str, ...]] = {}
    with suppress(EsTtcError, TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS), connected(settings) as engine:
            ours = await mappings_with_features(engine)
            for name in sorted({*ours, *await attached_sources(engine)})[:_MAX_NAMED]:
                with suppress(InvalidRequest):  # made by another release
                    if name in ours:
                        found[name] = IndexSpec.from_mapping(name, ours[name])
                    else:
                        found[name] = (await Indices.behind(engine, name)).only().spec
            for name, spec in found.items():
                unread[name] = unread_languages(await sample_documents(engine, name), spec.text_fields, spec.encoder)
    return found, unread


async def _require_index(settings: GatewaySettings, index: str) -> None:
    """Refuse a name of no index, as far as the settings' own credentials show."""
    with suppress(EngineUnavailable, TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS), connected(settings) as engine:
            try:
                await engine.mapping(index)
            except EngineError as error:
                if error.upstream_status == 404:
                    raise no_index(engine, index) from None


def page_address(url: str, index: str = "") -> str:
    """Return the address of the playground of a gateway, with an index chosen if one is named."""
    return f"{url}/_ttc/ui/" + (f"#/search?{urlencode({'index': index})}" if index else "")


def _introduce(
    settings: GatewaySettings,
    url: str,
    engine: str,
    indices: Mapping[str, IndexSpec],
    unread: Mapping[str, tuple[str, ...]],
) -> None:
    processes = f", {settings.workers} processes" if settings.workers > 1 else ""
    lines = {
        "gateway": f"{url}{processes}; Ctrl-C stops it",
        "engine": engine,
        "encoder": _encoders(settings, indices),
        "memory": f"up to {settings.feature_cache_mb:,} MiB of features{' for all processes' * bool(processes)}",
        "indices": ", ".join(indices) or "none with features; es-ttc ingest NAME FILE or es-ttc attach NAME adds them",
    }
    if settings.query_adapters:
        lines["queries"] = ", ".join(f"of {name} by {folder}" for name, folder in settings.query_adapters.items())
    if settings.ui:
        lines["page"] = page_address(url)
    off = [] if settings.ui else ["playground (--ui)"]
    if settings.llm_url is None and settings.llm_offline is None:
        off.append("sira, hyde, query2doc (ES_TTC_LLM_URL)")
    problems = [f"[{name}] is {' and '.join(languages)}" for name, languages in unread.items() if languages]
    if problems:
        lines["note"] = f"{', '.join(problems)}, which its encoder does not read (`es-ttc doctor`)"
    if off:
        lines["off"] = ", ".join(off)
    if indices:
        name, spec = next(iter(indices.items()))
        body = {"query": {"match": {spec.text_fields[0]: "what you look for"}}, "rescore": {"ttc": {}}}
        data = shlex.quote(orjson.dumps(body).decode())
        lines["try"] = f"curl -s '{url}/{name}/_search?pretty' -H 'content-type: application/json' -d {data}"
    click.echo("\n".join(f"{what:8} {detail}" for what, detail in lines.items()))


def _encoders(settings: GatewaySettings, indices: Mapping[str, IndexSpec]) -> str:
    """Return the names of the encoders, with the languages of those that indices were encoded by."""
    read = {spec.encoder.model: spec.encoder.languages for spec in indices.values()}
    reads = [f"{model} reads {' and '.join(languages)}" for model, languages in read.items() if languages]
    return "; ".join([", ".join((settings.encoder, *settings.encoders)), *reads])


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
    if lacks_libraries():
        raise ConfigurationError(_LACKS_LIBRARIES)
    settings = GatewaySettings(**provided(engine=engine), host="127.0.0.1", port=port, workers=1, ui=True)
    for name in (settings.encoder, *settings.encoders):
        require_known(name)
    with bind(settings) as listening:
        engine_url, reachable, _ = asyncio.run(look(settings))
        if reachable and index:
            asyncio.run(_require_index(settings, index))
        page = page_address(address_of(listening, tls=settings.tls_cert is not None), index)
        click.echo(f"{page}\nengine at {engine_url}; Ctrl-C stops it")
        if not reachable:
            click.echo(f"es-ttc: no engine answers at {engine_url} yet: the page says so until it does", err=True)
        if not no_browser and has_browser():
            webbrowser.open(page)  # the socket listens: the browser waits until the gateway has started
        run(settings, listening, playground_routes)


def has_browser() -> bool:
    """Return whether there is a screen for a browser: one of the terminal would take the command's own."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
