"""Codebooks of indices, which residuals refer to: read from the mapping and cached."""

from base64 import b64decode

from es_ttc.common.caches import ExpiringCache, LruCache
from es_ttc.errors import EngineError
from es_ttc.index.mappings.spec import CODEBOOK
from es_ttc.serving.features.index_meta import meta_of
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.pool import BoundedPool
from es_ttc.vectors.packed import codebook_id, unpack_codebook
from es_ttc.vectors.residual import Codebook

_CAPACITY_BYTES = 64 * 2**20
_ABSENT_SECONDS = 60.0
"""Time for which a missing codebook is assumed to be missing still: codebooks are created with their index."""
_MAX_ABSENT = 1024


class CodebookStore:
    """Reads codebooks, and caches them by their id."""

    def __init__(self, upstream: Upstream, pool: BoundedPool) -> None:
        self._upstream = upstream
        self._pool = pool
        self._cache: LruCache[str, Codebook] = LruCache(_CAPACITY_BYTES)
        self._absent: ExpiringCache[tuple[str, str], None] = ExpiringCache(_MAX_ABSENT, _ABSENT_SECONDS)

    async def codebook(self, index: str, identifier: str, caller: Caller) -> Codebook:
        """Return a codebook of an index.

        Raises:
            EngineError: The mapping may not be read, or does not contain it.
            EngineUnavailable: The engine does not answer.
        """
        cached = self._cache.get(identifier)
        if cached is not None:
            return cached
        if (index, identifier) in self._absent:
            raise EngineError(f"index [{index}] has no codebook [{identifier}]")
        async for values in meta_of(self._upstream, index, CODEBOOK, caller):
            blob = next((blob for blob in map(b64decode, values) if codebook_id(blob) == identifier), None)
            if blob is not None:
                codebook = await self._pool.run(_unpacked, blob)
                self._cache.put(identifier, codebook, codebook.table.nbytes + codebook.centroids.nbytes)
                return codebook
            if values:
                self._absent.put((index, identifier), None)
        raise EngineError(
            f"the codebook [{identifier}] of index [{index}] could not be read: give the gateway credentials that may "
            "see the index's mapping"
        )


def _unpacked(blob: bytes) -> Codebook:
    try:
        return unpack_codebook(blob)
    except ValueError as error:
        raise EngineError(f"a codebook is damaged: {error}") from error
