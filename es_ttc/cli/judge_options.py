"""Options of the commands that take queries and judgements from an index, and their reading."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from es_ttc.engine.connect import connected
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.lab.judging.overview import Overview, read_overview
from es_ttc.lab.judging.store import JudgementStore
from es_ttc.settings import EngineSettings

with_llm_flag = click.option(
    "--with-llm", is_flag=True, help="Count judgements of language models too. Default: those of people and imports."
)


def judgements_option(help: str) -> Callable[..., Any]:  # noqa: A002 - click's own name
    """Return the option for an index with judgements."""
    return click.option("--judgements", metavar="INDEX", help=help)


def require_one_source(data: Sequence[Path], judgements: str | None, *, with_llm: bool) -> None:
    """Raise an error unless queries come from folders or from an index."""
    if bool(data) == (judgements is not None):
        raise click.UsageError("name a folder DATA, or an index with judgements: --judgements INDEX")
    if with_llm and judgements is None:
        raise click.UsageError("--with-llm goes with --judgements INDEX")


def load_judged(settings: EngineSettings, index: str, *, with_llm: bool) -> Collection:
    """Read an index's judged queries."""
    return asyncio.run(read(settings, index, with_llm=with_llm, signals=False)).collection()


async def read(settings: EngineSettings, index: str, *, with_llm: bool, signals: bool = True) -> Overview:
    """Read an index's pools and judgements."""
    async with connected(settings) as client:
        return await read_overview(JudgementStore(client, index), with_llm=with_llm, signals=signals)
