"""The codebooks that residuals are read with: out of an index's mapping once, then from memory."""

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
"""How long a codebook that a mapping does not have is taken to be absent: codebooks are made with their index."""
_MOST_ABSENT = 1024


class CodebookStore:
    """Reads codebooks, and keeps them by their id.

    Args:
        upstream: The engine.
        pool: Where they are unpacked.
    """

    def __init__(self, upstream: Upstream, pool: BoundedPool) -> None:
        self._upstream = upstream
        self._pool = pool
        self._kept: LruCache[str, Codebook] = LruCache(_CAPACITY_BYTES)
        self._absent: ExpiringCache[tuple[str, str], None] = ExpiringCache(_MOST_ABSENT, _ABSENT_SECONDS)

    async def codebook(self, index: str, identifier: str, caller: Caller) -> Codebook:
        """Return a codebook of an index.

        Raises:
            EngineError: The mapping may not be seen, or no longer has it.
            EngineUnavailable: The engine does not answer.
        """
        kept = self._kept.get(identifier)
        if kept is not None:
            return kept
        if (index, identifier) in self._absent:
            raise EngineError(f"index [{index}] has no codebook [{identifier}]")
        async for written in meta_of(self._upstream, index, CODEBOOK, caller):
            blob = next((blob for blob in map(b64decode, written) if codebook_id(blob) == identifier), None)
            if blob is not None:
                codebook = await self._pool.run(_unpacked, blob)
                self._kept.put(identifier, codebook, codebook.table.nbytes + codebook.centroids.nbytes)
                return codebook
            if written:
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
