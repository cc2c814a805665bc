"""The relevance of the hits of a search, and hits that have too little of it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np

from es_ttc.errors import EngineError, InvalidRequest, MissingFeature
from es_ttc.rescorers.base import Params
from es_ttc.rescorers.relevance import Calibration
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.scores import WindowScores
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.request.section import KEY, Section
from es_ttc.serving.rescore.ranking import OrderedScores
from es_ttc.vectors.tokens import Float32


async def calibrated_name(known: Mapping[str, Calibration], caller: Caller, engine: EngineClient) -> str:
    """Return the name of a search's target; if it has no calibration, that of its only index."""
    target = unquote(caller.indices)
    if not target or target in known:
        return target
    try:
        indices = await engine.json("GET", f"/{caller.indices}/_alias".encode(), failing="no alias is read")
    except EngineError:
        return target
    [name] = indices if len(indices) == 1 else [target]
    return name if name in known else target


def calibration_for(section: Section, known: Mapping[str, Calibration], target: str) -> Calibration | None:
    """Return the calibration of a search's target; None if it has none and the search does not ask for relevance."""
    if target in known or section.relevance_key is None:
        return known.get(target)
    needs = f"[{KEY}.{section.relevance_key}] needs"
    if not target:
        raise InvalidRequest(f"{needs} the name of an index, which this search lacks: name it in the URL")
    raise MissingFeature(
        f"{needs} a calibration of [{target}], which this gateway does not have: make one with `es-ttc calibrate "
        f"relevance {target} --out FILE`, and give it to `es-ttc serve --tuned FILE`"
    )


def relevance_of(scored: WindowScores, calibration: Calibration, section: Section, params: Params) -> Float32 | None:
    """Return the relevance of a window's documents, ``(n,)``, NaN where unknown; None if none is asked or known."""
    if not len(scored.mask):
        return np.zeros(0, np.float32)
    if scored.encoder != calibration.encoder:
        why = f"its features are of encoder [{scored.encoder}], not of [{calibration.encoder}]"
    elif lacking := calibration.model.weights.keys() - scored.signals:
        why = f"it has no [{', '.join(sorted(lacking))}]"
    elif getattr(params, "signals", None) != calibration.blend:
        why = "it weighs its signals otherwise (leave [params] out)"
    else:
        return calibration.probabilities(scored.signals)
    if section.relevance_key is None:
        return None
    name = calibration.names[0]
    raise MissingFeature(
        f"the relevance of [{name}] was not fitted to this search: {why}. Fit it again with `es-ttc calibrate "
        f"relevance {name}` (--tuned FILE for tuned weights)"
    )


def cut_by_relevance(
    ranking: OrderedScores, relevance: Float32, calibration: Calibration, least: float | None, pinned: int
) -> tuple[OrderedScores, dict[str, Any]]:
    """Return a ranking without hits below the least relevance, and what the response tells.

    Pinned documents, which are the first ones, stay; documents outside the window have no relevance and go.

    ``relevance``, ``(n,)``, is that of the ranking's first n documents. All stay if ``least`` is None.
    """
    greatest = float(np.nanmax(relevance, initial=-1))
    summary: dict[str, Any] = {"greatest": None if greatest < 0 else round(greatest, 4)}
    if least is not None:
        within = ranking.order < len(relevance)
        reached = (relevance >= least) | (np.arange(len(relevance)) < pinned)
        reaching = within.copy()
        reaching[within] = reached[ranking.order[within]]
        summary |= {"min": least, "hits": int(reaching.sum()), "cut": int(within.sum() - reaching.sum())}
        ranking = OrderedScores(ranking.order[reaching], ranking.scores[reaching])
    figures = {name: round(getattr(calibration, name), 3) for name in ("queries", "auc", "error")}
    return ranking, {**summary, "calibration": figures}


def shown_relevance(relevance: Float32, place: int) -> float | None:
    """Return the relevance of the hit at a place; None if it is unknown."""
    known = place < len(relevance) and not np.isnan(relevance[place])
    return round(float(relevance[place]), 4) if known else None
