"""`es-ttc calibrate`: statistics of queries in an index, and the relevance of its hits."""

from pathlib import Path
from typing import Annotated

import click

from es_ttc.cli.calibrate_relevance import relevance
from es_ttc.cli.common import AsJson, EncoderName, EngineUrl, given, print_result, stderr, with_engine
from es_ttc.cli.model_options import CommandGroup
from es_ttc.cli.signatures import command
from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
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


@command("es-ttc calibrate queries articles --queries queries.txt", group=calibrate)
def queries(
    name: str,
    /,
    *,
    file: Annotated[
        Path,
        "--queries FILE",
        click.Path(exists=True, dir_okay=False, path_type=Path),
        "Query log: one query per line, CSV with a column `query`, JSON Lines, or UBI events; .gz too.",
    ],
    engine: EngineUrl,
    encoder: EncoderName,
    as_json: AsJson,
) -> None:
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
    moments = with_engine(settings, lambda client: _calibrate(client, name, texts, loaded))
    if moments.size < _FEW:
        stderr.print(
            f"[yellow]mind:[/] {moments.size} queries are few: below {_FEW} a document's statistics are noise, and "
            "`bidirzscore` may rank worse than dense"
        )
    data = {"index": name, "queries": moments.size, "directions": len(moments.factor)}
    print_result(data, f"calibrated index [{name}] with {moments.size:,} queries", as_json=as_json)


calibrate.add_command(relevance)


async def _calibrate(engine: Engine, name: str, texts: list[str], encoder: Encoder) -> Moments:
    written = [await write(engine, held.index, texts, encoder) for held in await feature_locations(engine, name)]
    return written[0]
