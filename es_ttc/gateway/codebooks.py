"""The codebooks that residuals are read with: out of an index's mapping once, then from memory."""

from base64 import b64decode
from urllib.parse import quote, urlencode

from es_ttc.errors import EngineError
from es_ttc.gateway import jsonio
from es_ttc.gateway.cache import LruCache
from es_ttc.gateway.incoming import RawHeaders
from es_ttc.gateway.pool import BoundedPool
from es_ttc.gateway.upstream import Caller, Upstream, callers
from es_ttc.mappings.spec import ROOT
from es_ttc.vectors.packed import codebook_id, unpack_codebook
from es_ttc.vectors.residual import Codebook

_CAPACITY_BYTES = 64 * 2**20


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

    async def codebook(self, index: str, identifier: str, caller: Caller) -> Codebook:
        """Return a codebook of an index.

        A caller who may search an index need not have the right to see its mapping; the gateway's own credentials are
        tried then. A codebook tells nothing of any document.

        Raises:
            EngineError: The mapping may not be seen, or no longer has it.
            EngineUnavailable: The engine does not answer.
        """
        kept = self._kept.get(identifier)
        if kept is not None:
            return kept
        for headers in (callers(caller.headers), self._upstream.service_headers()):
            found = await self._of_mapping(index, headers)
            if identifier in found:
                codebook = await self._pool.run(_unpacked, found[identifier])
                self._kept.put(identifier, codebook, codebook.table.nbytes + codebook.centroids.nbytes)
                return codebook
        raise EngineError(
            f"the codebook [{identifier}] of index [{index}] could not be read: give the gateway credentials that may "
            "see the index's mapping"
        )

    async def _of_mapping(self, index: str, headers: RawHeaders) -> dict[str, bytes]:
        """Return the codebooks in an index's mapping by their id: one or none."""
        query_string = urlencode({"filter_path": f"*.mappings._meta.{ROOT}.codebook"}).encode()
        path = f"/{quote(index, safe='')}/_mapping".encode()
        plain: RawHeaders = [(b"accept", b"application/json"), (b"accept-encoding", b"identity")]
        kept = [(name, value) for name, value in headers if name != b"accept"]
        async with self._upstream.send("GET", path, query_string, [*kept, *plain], None, ours=True) as response:
            raw = await response.read()
            if response.status != 200:
                return {}
        found = {}
        for mapping in jsonio.loads(raw).values():
            blob = b64decode(mapping["mappings"]["_meta"][ROOT]["codebook"])
            found[codebook_id(blob)] = blob
        return found


def _unpacked(blob: bytes) -> Codebook:
    try:
        return unpack_codebook(blob)
    except ValueError as error:
        raise EngineError(f"a codebook is damaged: {error}") from error
