"""The relevance of the hits of a search, and hits that have too little of it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np

from es_ttc.errors import EncoderMismatch, InvalidRequest, MissingFeature
from es_ttc.rescorers.base import Params
from es_ttc.rescorers.blend.rescorer import BlendRescorer
from es_ttc.rescorers.relevance import Calibration
from es_ttc.serving.features.scores import WindowScores
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.request.section import KEY, Section
from es_ttc.serving.rescore.page import Ranking
from es_ttc.vectors.tokens import Float32


def calibration_for(section: Section, known: Mapping[str, Calibration], caller: Caller) -> Calibration | None:
    """Return the calibration of a search's target; None if its hits show no relevance.

    Raises:
        InvalidRequest: The section asks for relevance, and the target has no calibration.
    """
    if section.method != BlendRescorer.name or not (section.detail or section.asks_relevance):
        return None
    target = unquote(caller.indices)
    calibration = known.get(target)
    if calibration is None and section.asks_relevance:
        key = "relevance" if section.relevance else "min_relevance"
        if not target:
            raise InvalidRequest(
                f"[{KEY}.{key}] needs the name of an index, which this search lacks: name it in the URL"
            )
        raise InvalidRequest(
            f"[{KEY}.{key}] needs a calibration of [{target}], which this gateway does not have: make one with `es-ttc "
            f"calibrate relevance {target} --out FILE`, and give it to `es-ttc serve --tuned FILE`"
        )
    return calibration


def relevance_of(scored: WindowScores, calibration: Calibration, section: Section, params: Params) -> Float32 | None:
    """Return the relevance of a window's documents, ``(n,)``; NaN of those without it; None if none is asked or known.

    Raises:
        EncoderMismatch: The calibration is of features of another encoder.
        MissingFeature: The search lacks a signal of the calibration, or weighs signals otherwise.
    """
    if not len(scored.mask):
        return np.zeros(0, np.float32)
    lacking = [name for name in calibration.model.weights if name not in scored.signals]
    weighs = getattr(params, "signals", None) == calibration.blend
    if scored.encoder == calibration.encoder and not lacking and weighs:
        return calibration.probabilities(scored.signals)
    if not section.asks_relevance:
        return None
    name = calibration.names[0]
    if lacking or not weighs:
        why = f"which has no [{', '.join(lacking)}]" if lacking else "which weighs its signals otherwise"
        raise MissingFeature(
            f"the relevance of [{name}] was not fitted to this search, {why}: leave [params] out, or fit it again with "
            f"`es-ttc calibrate relevance {name}` (--tuned FILE for tuned weights)"
        )
    raise EncoderMismatch(
        f"the relevance of [{name}] is fitted to encoder [{calibration.encoder}], and its features are of "
        f"[{scored.encoder}]: fit it again with `es-ttc calibrate relevance {name}`"
    )


def cut_by_relevance(
    ranking: Ranking, relevance: Float32, calibration: Calibration, section: Section, pinned: int
) -> tuple[Ranking, dict[str, Any]]:
    """Return a ranking without hits below the least relevance, and what the response tells.

    Pinned documents stay; documents outside the window have no relevance and go.

    Args:
        ranking: The ranking.
        relevance: ``(n,)`` of the first n documents of a search.
        calibration: From which it comes.
        section: The request's section.
        pinned: Number of pinned documents, which are the first ones.
    """
    greatest = float(np.nanmax(relevance, initial=-1))
    told: dict[str, Any] = {"greatest": None if greatest < 0 else round(greatest, 4)}
    least = section.min_relevance
    if least is not None:
        reached = np.zeros(int(ranking.order.max(initial=len(relevance))) + 1, np.bool_)
        reached[: len(relevance)] = relevance >= least
        reached[:pinned] = True
        kept = reached[ranking.order]
        in_window = int((ranking.order < len(relevance)).sum())
        told |= {"min": least, "hits": int(kept.sum()), "cut": in_window - int(kept.sum())}
        ranking = Ranking(ranking.order[kept], ranking.scores[kept])
    told["calibration"] = {
        "queries": calibration.queries,
        "auc": round(calibration.auc, 3),
        "error": round(calibration.error, 3),
    }
    return ranking, told


def shown_relevance(relevance: Float32, place: int) -> float | None:
    """Return the relevance of the hit at a place; None if it is unknown."""
    known = place < len(relevance) and not np.isnan(relevance[place])
    return round(float(relevance[place]), 4) if known else None
