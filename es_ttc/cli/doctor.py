"""`es-ttc doctor`: check what works here, and name the command that fixes each problem."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from rich.table import Table
from rich.text import Text

from es_ttc.cli import checks
from es_ttc.cli.checks import Check, Verdict
from es_ttc.cli.common import AsJson, EncoderName, EngineUrl, given, print_json, stderr, stdout
from es_ttc.cli.signatures import command
from es_ttc.settings import GatewaySettings

STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.MISSING: "bold red"}


@command("es-ttc doctor", "es-ttc doctor --engine http://127.0.0.1:9200 --json")
def doctor(
    *,
    engine: EngineUrl,
    encoder: EncoderName,
    gateway: Annotated[
        str | None, "--gateway URL", "URL of the gateway. Default: where `es-ttc serve` listens."
    ] = None,
    as_json: AsJson,
) -> int:
    """Check what works and what does not.

    The checks cover versions, engine, indices, encoder, queue, model, gateway and cache. Each finding that needs action
    comes with the command that fixes it. Exit status: 0 if everything needed works.
    """
    settings = GatewaySettings(**given(engine=engine, encoder=encoder))
    with stderr.status("looking at this machine, the engine and the encoder"):
        found = asyncio.run(_examine(settings, gateway or f"http://{settings.host}:{settings.port}"))
    works = all(check.verdict is not Verdict.MISSING for check in found)
    if as_json:
        print_json({"ok": works, "checks": [asdict(check) for check in found]})
    else:
        stdout.print(report(found))
        stdout.print(summary(found))
    return 0 if works else 1


async def _examine(settings: GatewaySettings, gateway: str) -> list[Check]:
    found = [*checks.packages(), checks.java(), checks.cache_folder(settings.cache_dir)]
    encoder_check, encoder = checks.encoder(settings.encoder, settings.cache_dir)
    found.append(encoder_check)
    found += [] if encoder is None else [checks.suited_methods(encoder.identity)]
    found += await checks.cross_encoder()
    found += await checks.engine(settings, encoder)
    if any(check.subject == "engine" and check.verdict is not Verdict.MISSING for check in found):
        found += await checks.workers(settings)
    found += [await checks.queue(settings), await checks.model(settings), await checks.gateway(gateway)]
    return found


def report(found: Sequence[Check]) -> Table:
    """Return one row for each check, followed by the command that fixes a problem."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in found:
        detail = Text(check.detail)
        if check.mend:
            detail.append(f"\n→ {check.mend}", "bold")
        table.add_row(Text(check.verdict, STYLES[check.verdict]), Text(check.subject), detail)
    return table


def summary(found: Sequence[Check]) -> Text:
    """Return a summary in one sentence."""
    missing = [check.subject for check in found if check.verdict is Verdict.MISSING]
    warnings = sum(check.verdict is Verdict.WARNING for check in found)
    if missing:
        return Text(f"\nNot ready: {', '.join(missing)}.", STYLES[Verdict.MISSING])
    noted = f" ({warnings} to know about)" if warnings else ""
    return Text(f"\nEverything needed works{noted}.", STYLES[Verdict.OK])
