"""`es-ttc trial`: the verdict of clicks on an adapter that serves beside the ranking without it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from es_ttc.cli.common import AsJson, print_result
from es_ttc.cli.signatures import FILE, command
from es_ttc.lab.learning.query_log import read_log
from es_ttc.lab.learning.trial import MIN_CLICKED, verdict_of_trial


@command("es-ttc trial shop trial.jsonl --clicks ubi_events.jsonl")
def trial(
    name: str,
    file: Annotated[Path, FILE],
    /,
    *,
    clicks: Annotated[
        Path, "--clicks FILE", FILE, "Log with the clicks, in a form that `es-ttc learn --queries` reads."
    ],
    as_json: AsJson,
) -> None:
    """Tell from clicks whether the adapter on trial for the index NAME is better.

    FILE is that of the gateway's setting `trial_log`: for each search of the trial it says which ranking has put each
    hit there. A query counts once, with the share of its clicks that are on the adapter's hits.
    """
    found = verdict_of_trial(file, name, read_log(clicks, weight=lambda _position: 1.0).clicks)
    told = [f"{name}: {found.searches:,} searches of {found.queries:,} queries, {found.clicked:,} of them clicked"]
    if found.shares is None:
        told.append(f"no verdict: [{MIN_CLICKED}] clicked queries are needed")
        winner = None
    else:
        one, low, high = found.shares, found.shares.interval.low, found.shares.interval.high
        winner = "adapter" if low > 0 else "encoder alone" if high < 0 else None
        told += [
            f"queries with most clicks on the adapter's hits: {one.wins}, on others: {one.losses}, even: {one.ties}",
            f"share of clicks, adapter less encoder alone: {one.delta:+.2f} ({low:+.2f} to {high:+.2f})",
            f"better: {winner}" if winner else "neither is clearly better yet",
        ]
    print_result({"index": name, **asdict(found), "better": winner}, "\n".join(told), as_json=as_json)
