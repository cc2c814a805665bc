"""The verdict of a trial of an adapter (:mod:`es_ttc.serving.trial`): whose documents users click."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.evaluation.bootstrap import Comparison
from es_ttc.lab.evaluation.tuning import compared

MIN_CLICKED = 20
"""Clicked queries below which there is no verdict."""


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """What clicks say of a trial: numbers of searches, of distinct queries, and of those with a click on its documents.

    `shares` compares the share of each clicked query's clicks on documents that the ranking with the adapter has put
    there with the share on the others; None with fewer than :data:`MIN_CLICKED` clicked queries.
    """

    adapter: str
    searches: int
    queries: int
    clicked: int
    shares: Comparison | None


def verdict_of_trial(file: Path, index: str, clicks: Mapping[str, Mapping[str, float]]) -> TrialVerdict:
    """Return the verdict on an index's latest adapter, from the file of the setting `trial_log` and clicks by query.

    Its unit is the query: the same one is always drawn alike.
    """
    try:
        lines: list[dict[str, Any]] = []
        for line in file.read_bytes().splitlines():
            with suppress(orjson.JSONDecodeError):  # a full disk cuts lines
                lines.append(orjson.loads(line))
        own = [line for line in lines if line["index"] == index]
        adapter = own[-1]["adapter"] if own else ""
        own = [line for line in own if line["adapter"] == adapter]
        teams = {(line["query"], name): team for line in own for name, team in line["hits"]}
    except OSError as error:
        raise ConfigurationError(f"[{file}] cannot be read: {error.strerror}") from error
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(f"[{file}] is no file of a trial: give that of the setting trial_log") from error
    if not own:
        named = ", ".join(sorted({line["index"] for line in lines}))
        raise InvalidRequest(f"[{file}] has no search of [{index}]" + (f": it has [{named}]" if named else ""))
    counts: dict[str, dict[str, float]] = {}
    for (query, document), team in teams.items():
        if number := clicks.get(query, {}).get(document, 0.0):
            of_query = counts.setdefault(query, {"learned": 0.0, "frozen": 0.0})
            of_query[team] += number
    learned = np.array([one["learned"] / (one["learned"] + one["frozen"]) for one in counts.values()])
    shares = compared(learned, 1 - learned) if len(counts) >= MIN_CLICKED else None
    return TrialVerdict(adapter, len(own), len({line["query"] for line in own}), len(counts), shares)
