"""`es-ttc calibrate`: statistics of queries in an index, and the relevance of its hits."""

import asyncio
from pathlib import Path

import click

from es_ttc.cli.calibrate_relevance import relevance
from es_ttc.cli.common import encoder_flag, engine_flag, given, json_flag, print_json, stderr
from es_ttc.cli.model_options import CommandGroup
from es_ttc.cli.options import examples
from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.index.attach.feature_locations import feature_locations
from es_ttc.index.mappings.calibration import calibrate as write
from es_ttc.lab.learning.query_log import read_log
from es_ttc.settings import Settings
from es_ttc.vectors.moments import Moments

_FEW = 100
"""Number of queries below which the ranking suffers (docs/how-to/choose-a-program.md)."""


@click.group(cls=CommandGroup)
def calibrate() -> None:
    """Relate the scores of an index to other queries, or to the relevance of hits."""


@calibrate.command(epilog=examples("es-ttc calibrate queries articles --queries queries.txt"))
@click.argument("name")
@click.option(
    "--queries",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Query log: one query per line, CSV with a column `query`, JSON Lines, or UBI events; .gz too.",
)
@engine_flag
@encoder_flag
@json_flag
def queries(name: str, file: Path, engine: str | None, encoder: str | None, as_json: bool) -> None:
    """Store statistics of a sample of queries in the index NAME.

    The program `bidirzscore` relates a document's score to its scores for other queries. This command computes the mean
    and the main directions of a sample of query vectors and stores them in the index's mapping. It stores no query.
    NAME may also be an attached index, an alias or a data stream. Running the command again replaces the sample;
    running gateways notice within a minute.

    A few hundred queries from a log are sufficient. Never use queries that you evaluate with.
    """
    texts = list(read_log(file).counts)
    settings = Settings(**given(engine=engine, encoder=encoder))
    with stderr.status("loading the encoder"):
        loaded = load_encoder(settings.encoder, cache_dir=settings.cache_dir)
    moments = asyncio.run(_calibrate(settings, name, texts, loaded))
    if moments.size < _FEW:
        stderr.print(
            f"[yellow]mind:[/] {moments.size} queries are few: below {_FEW} a document's statistics are noise, and "
            "`bidirzscore` may rank worse than dense"
        )
    if as_json:
        print_json({"index": name, "queries": moments.size, "directions": len(moments.factor)})
    else:
        click.echo(f"calibrated index [{name}] with {moments.size:,} queries")


calibrate.add_command(relevance)


async def _calibrate(settings: Settings, name: str, texts: list[str], encoder: Encoder) -> Moments:
    async with connected(settings) as engine:
        written = [await write(engine, held.index, texts, encoder) for held in await feature_locations(engine, name)]
    return written[0]
