"""Calibrations: a sample of an index's queries, out of its mapping, kept for a while."""

import time
from urllib.parse import quote, urlencode

from es_ttc.errors import EngineError
from es_ttc.gateway import jsonio
from es_ttc.gateway.incoming import RawHeaders
from es_ttc.gateway.upstream import Caller, Upstream, callers
from es_ttc.mappings.calibration import calibration_of
from es_ttc.mappings.spec import ROOT
from es_ttc.rescorers.programs.primitives.moments import Moments

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
        self._kept: dict[tuple[str, str], tuple[float, Moments | None]] = {}

    async def of(self, index: str, encoder: str, caller: Caller) -> Moments | None:
        """Return an index's calibration, or None where it has none for this encoder.

        A caller who may search an index need not have the right to see its mapping; the gateway's own credentials are
        tried then. A calibration holds statistics of queries, and nothing of any document.

        Raises:
            EngineError: It is damaged.
            EngineUnavailable: The engine does not answer.
        """
        now = time.monotonic()
        kept = self._kept.get((index, encoder))
        if kept is not None and now - kept[0] < _SECONDS:
            return kept[1]
        found = None
        for headers in (callers(caller.headers), self._upstream.service_headers()):
            meta = await self._of_mapping(index, headers)
            if meta is not None:
                found = _read(meta, encoder, index)
                break
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[index, encoder] = now, found
        return found

    async def _of_mapping(self, index: str, headers: RawHeaders) -> dict[str, str] | None:
        """Return what stands in an index's mapping; empty where nothing does, None where it may not be seen."""
        query_string = urlencode({"filter_path": f"*.mappings._meta.{ROOT}.calibration"}).encode()
        path = f"/{quote(index, safe='')}/_mapping".encode()
        plain: RawHeaders = [(b"accept", b"application/json"), (b"accept-encoding", b"identity")]
        kept = [(name, value) for name, value in headers if name != b"accept"]
        async with self._upstream.send("GET", path, query_string, [*kept, *plain], None, ours=True) as response:
            raw = await response.read()
            if response.status != 200:
                return None
        for mapping in jsonio.loads(raw).values():
            found: dict[str, str] = mapping["mappings"]["_meta"][ROOT]["calibration"]
            return found
        return {}


def _read(meta: dict[str, str], encoder: str, index: str) -> Moments | None:
    try:
        return calibration_of(meta, encoder)
    except ValueError as error:
        raise EngineError(f"the calibration of index [{index}] is damaged: {error}") from error
