"""How much blend changes the first hits of an index's own titles: one line, before anything is judged."""

import asyncio
import re
from typing import Any

import click

from es_ttc.cli.common import sample_documents
from es_ttc.cli.searching import CliQuery, SearchTarget, search
from es_ttc.common.markup import blanked
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.index.ingest.compose import compose
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings, Settings

AFTER = 200  # documents after which an ingest tells it
_QUERIES = 5
_HITS = 10
_WORDS = 12
_MAX_SECONDS = 20.0
_SENTENCE = re.compile(r"(?<=[.!?。])\s+|\n")


async def tell_changes(settings: Settings, index: str, spec: IndexSpec, encoder: Encoder) -> None:
    """Say how many of the first hits blend changes for a few queries; nothing where that cannot be known."""
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            told = await _changes(settings, index, spec, encoder)
    except Exception:  # noqa: BLE001 - an estimate must not make a run fail that is done
        return
    if told:
        click.echo(told, err=True)


async def _changes(settings: Settings, index: str, spec: IndexSpec, encoder: Encoder) -> str:
    gateway = GatewaySettings(
        **settings.model_dump(exclude_unset=True) | {"port": 0, "host": "127.0.0.1", "workers": 1}
    )
    async with connected(settings) as engine:
        await engine.refresh(index)
        documents = await sample_documents(engine, index)
    queries = list(dict.fromkeys(filter(None, (_query(document, spec) for document in documents))))[:_QUERIES]
    running = running_gateway(gateway, load=lambda _name, _folder: encoder)
    url = await asyncio.to_thread(running.__enter__)
    changed = shown = 0
    try:
        async with connected(gateway.model_copy(update={"engine": url})) as client:
            target = SearchTarget(client, index, spec, spec.text_fields)
            for text in queries:
                before, after = [
                    [hit.id for hit in (await search(target, CliQuery(text, method, _HITS))).hits]
                    for method in ("bm25", "blend")
                ]
                changed += len(set(after) - set(before))
                shown += len(after)
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
    if not shown:
        return ""
    example = queries[0] if len(queries[0]) <= 60 else f"{queries[0][:57]}..."
    asked = f"{len(queries)} quer{'y' if len(queries) == 1 else 'ies'}"
    return (
        f"blend changes {changed} of the {shown} first hits of {asked} made of the index's own texts, such as "
        f"[{example}]; see which ranking is better: es-ttc ui {index}"
    )


def _query(document: dict[str, Any], spec: IndexSpec) -> str:
    """Return the beginning of a document's first text."""
    text = next((text for name in spec.text_fields if (text := compose(document, [name])[0].strip())), "")
    words = blanked(text).split()
    if len(words) > _WORDS:
        words = _SENTENCE.split(blanked(text).strip(), maxsplit=1)[0].split()
    return " ".join(words[:_WORDS])
