"""Calibrations of indices: statistics of a sample of queries, read from the mapping and cached."""

from es_ttc.common.caches import ExpiringCache
from es_ttc.errors import EngineError
from es_ttc.index.mappings.calibration import calibration_of
from es_ttc.index.mappings.spec import CALIBRATION
from es_ttc.serving.features.index_meta import meta_of
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.vectors.moments import Moments

_SECONDS = 60.0
"""Time for which a calibration, or its absence, is cached."""
_MAX_CACHED = 256


class CalibrationStore:
    """Reads and caches calibrations."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._cache: ExpiringCache[tuple[str, str], Moments | None] = ExpiringCache(_MAX_CACHED, _SECONDS)

    async def of(self, index: str, encoder: str, caller: Caller) -> Moments | None:
        """Return an index's calibration, or None if it has none for this encoder.

        Raises:
            EngineError: It is damaged.
            EngineUnavailable: The engine does not answer.
        """
        cached = self._cache.get((index, encoder))
        if cached is not None:
            return cached.value
        found = None
        async for values in meta_of(self._upstream, index, CALIBRATION, caller):
            found = _read(values[0], encoder, index) if values else None
            break
        self._cache.put((index, encoder), found)
        return found


def _read(meta: dict[str, str], encoder: str, index: str) -> Moments | None:
    try:
        return calibration_of(meta, encoder)
    except ValueError as error:
        raise EngineError(f"the calibration of index [{index}] is damaged: {error}") from error
