"""Load what searches need before the gateway says that it is ready, so that the first one is answered in time."""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from urllib.parse import urlencode

from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.errors import EngineError, EngineUnavailable, EsTtcError
from es_ttc.index.mappings.spec import ROOT
from es_ttc.rescorers import registry
from es_ttc.retrievers import registry as retrievers
from es_ttc.rewriters import registry as rewriters
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.features.encoding import Encoders
from es_ttc.serving.logs import log

_TEXT = ("a first query",)
_ENCODERS = urlencode({"filter_path": f"*.mappings._meta.{ROOT}.encoder", "expand_wildcards": "open,hidden"}).encode()
_AGAIN_SECONDS = 1.0
_MAX_ENCODERS = 4
"""Encoders of indices that are loaded at the start: no more variants are kept than that."""

_NEW_OBJECTS = 100_000  # containers between two collections; a window of 10,000 hits makes some 60,000
_FORMER = gc.get_threshold()
_settled = False


class WarmUp:
    """Loads the methods' code, the first encoder, and the encoders of the engine's indices."""

    def __init__(self, encoders: Encoders, engine: EngineClient) -> None:
        self._encoders = encoders
        self._engine = engine
        self._done = False
        self.unranked: dict[str, str] = {}
        """The keys of encoders that this gateway lacks, by the index that was encoded by it."""

    @property
    def done(self) -> bool:
        """Whether all of it is loaded; never if the first encoder cannot be."""
        return self._done and self._encoders.ready

    async def load_for_indices(self) -> None:
        """Load the encoders of the engine's indices, unless it does not answer or the first one cannot be loaded."""
        if not self._encoders.ready:
            return
        with suppress(EngineUnavailable):
            for key, indices in islice((await self._written_with()).items(), _MAX_ENCODERS):
                try:
                    await self._encode_first(await self._encoders.serving(key, indices[0]))
                except EsTtcError as error:  # this gateway does not have it
                    log.warning("index cannot be rescored", index=indices[0], problem=str(error))
                    self.unranked |= dict.fromkeys(indices, key)
            self._done = True
            settle_garbage()

    async def load(self) -> None:
        """Load everything that can be loaded now."""
        await self.load_first()
        await self.load_for_indices()

    async def run(self) -> None:
        """Load everything; the encoders of the engine's indices as soon as it answers."""
        await self.load()
        await self.retry()

    async def retry(self) -> None:
        """Load the encoders of the engine's indices as soon as it answers, where it has not yet."""
        while self._encoders.ready and not self._done:
            await asyncio.sleep(_AGAIN_SECONDS)
            await self.load_for_indices()

    async def load_first(self) -> None:
        """Load the methods' code and the first encoder."""
        for kind, group in (("rescorer", registry), ("retriever", retrievers), ("rewriter", rewriters)):
            for name, problem in (await asyncio.to_thread(group.problems)).items():  # imports what the first use would
                log.warning(f"{kind} cannot be used", name=name, problem=problem)
        name = self._encoders.names[0]
        try:
            encoder = await self._encoders.first()
        except Exception as error:  # noqa: BLE001 - any backend may fail in any way; searches say so again
            log.error("encoder cannot be loaded", name=name, problem=str(error))
        else:
            log.info("encoder loaded", name=name, identity=encoder.identity.key, backend=encoder.backend)
            await self._encode_first(encoder)

    async def _encode_first(self, encoder: Encoder) -> None:
        """Encode a text, for an encoder's first one takes longer than any other."""
        try:
            await self._encoders.encode(encoder, _TEXT, tokens=True)
        except EsTtcError as error:  # searches say so again
            log.warning("encoder does not work", identity=encoder.identity.key, problem=str(error))

    async def _written_with(self) -> Mapping[str, Sequence[str]]:
        """Return the keys of the encoders in the mappings, each with the indices that name it."""
        upstream = self._engine.upstream
        await upstream.version(upstream.service_headers())
        engine = self._engine.as_gateway()
        try:
            mappings = await engine.json("GET", b"/_mapping", _ENCODERS, failing="the mappings could not be read")
        except EngineUnavailable:
            raise
        except EngineError as error:
            log.info("encoders of indices are loaded when they are first searched", problem=str(error))
            return {}
        keys: dict[str, list[str]] = {}
        for index, mapping in mappings.items():
            with suppress(LookupError, TypeError, ValueError):  # not written by es-ttc, or by a newer one
                identity = EncoderIdentity.from_dict(mapping["mappings"]["_meta"][ROOT]["encoder"])
                keys.setdefault(identity.key, []).append(index)
        return keys


def settle_garbage() -> None:
    """Keep what has been loaded out of every later collection, and make collections rarer.

    A full collection of what is loaded would hold requests for 400 ms. At Python's own threshold a window of 10,000
    hits causes seventy collections, which take a sixth of the event loop's time for it.

    Nothing changes in a process whose objects are frozen already, by another gateway in it or by its own program.
    """
    global _settled
    if gc.get_freeze_count():
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *_FORMER[1:])
    _settled = True


def restore_garbage() -> None:
    """Undo what :func:`settle_garbage` has done in this process."""
    global _settled
    if _settled:
        gc.unfreeze()
        gc.set_threshold(*_FORMER)
        _settled = False
