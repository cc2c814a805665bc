"""Calibrations: a sample of an index's queries, out of its mapping, kept for a while."""

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EngineError
from es_ttc.index.mappings.calibration import calibration_of
from es_ttc.index.mappings.spec import CALIBRATION
from es_ttc.rescorers.programs.primitives.moments import Moments
from es_ttc.serving.features.index_meta import meta_of
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream

_SECONDS = 60.0
"""How long a calibration, or that there is none, is taken as read: a new one serves a minute later at most."""
_MOST_KEPT = 256


class CalibrationStore:
    """Reads calibrations and keeps them.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._kept: ExpiringCache[tuple[str, str], Moments | None] = ExpiringCache(_MOST_KEPT, _SECONDS)

    async def of(self, index: str, encoder: str, caller: Caller) -> Moments | None:
        """Return an index's calibration, or None where it has none for this encoder.

        Raises:
            EngineError: It is damaged.
            EngineUnavailable: The engine does not answer.
        """
        kept = self._kept.get((index, encoder))
        if kept is not None:
            return kept.value
        found = None
        async for written in meta_of(self._upstream, index, CALIBRATION, caller):
            found = _read(written[0], encoder, index) if written else None
            break
        self._kept.put((index, encoder), found)
        return found


def _read(meta: dict[str, str], encoder: str, index: str) -> Moments | None:
    try:
        return calibration_of(meta, encoder)
    except ValueError as error:
        raise EngineError(f"the calibration of index [{index}] is damaged: {error}") from error
