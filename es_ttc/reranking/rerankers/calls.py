"""Calls to a reranker: in batches, under a deadline, with a cache of answers and uniform errors."""

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TypeVar

from es_ttc.common.caches import LruCache
from es_ttc.errors import DeadlineExceeded, EsTtcError
from es_ttc.reranking.rerankers.base import ListwiseReranker, Passage, PointwiseReranker, RerankerError
from es_ttc.reranking.rerankers.cost import count_call
from es_ttc.reranking.strategies.base import BudgetExhausted, PartialScores
from es_ttc.reranking.strategies.listwise import repaired_order

T = TypeVar("T")

CallKey = tuple[str, ...]  # identity of the reranker, query, content hashes


class PointwiseCalls:
    """Calls a reranker that scores each text independently."""

    def __init__(self, reranker: PointwiseReranker, name: str, cache: LruCache[CallKey, float]) -> None:
        self.reranker = reranker
        self._name = name
        self._cache = cache
        self._room = asyncio.Semaphore(reranker.settings.at_once)

    async def scores(self, query: str, passages: Sequence[Passage], *, seconds: float = math.inf) -> list[float]:
        """Return one score for each passage; texts that were scored before for this query are not sent again."""
        end = time.monotonic() + seconds
        keys = [(self.reranker.identity, query, passage.hash) for passage in passages]
        known = {key: score for key in keys if (score := self._cache.get(key)) is not None}
        missing = {key: passage for key, passage in zip(keys, passages, strict=True) if key not in known}
        size = self.reranker.settings.batch
        batches = [list(missing)[start : start + size] for start in range(0, len(missing), size)]
        answers = await asyncio.gather(
            *(self._batch(query, [missing[key] for key in batch], end) for batch in batches), return_exceptions=True
        )
        failure: Exception | None = None
        for batch, answer in zip(batches, answers, strict=True):
            if isinstance(answer, Exception):
                failure = answer if failure is None or isinstance(failure, BudgetExhausted) else failure
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for key, score in zip(batch, answer, strict=True):
                    known[key] = score
                    self._cache.put(key, score)
        if failure is not None:
            raise PartialScores({place: known[key] for place, key in enumerate(keys) if key in known}, failure)
        return [known[key] for key in keys]

    async def close(self) -> None:
        """Close connections and release models."""
        await self.reranker.close()

    async def _batch(self, query: str, passages: Sequence[Passage], end: float) -> list[float]:
        settings = self.reranker.settings
        cut = [_cut(passage, settings.max_characters) for passage in passages]
        scores = list(await _called(self._name, self._room, settings.timeout_ms, end, self.reranker.scores(query, cut)))
        if len(scores) != len(passages):
            raise RerankerError(f"reranker [{self._name}] gave {len(scores)} scores for {len(passages)} documents")
        if not all(map(_is_finite, scores)):
            raise RerankerError(f"reranker [{self._name}] gave a score that is not a finite number")
        return [float(score) for score in scores]


class ListwiseCalls:
    """Calls a reranker that puts a few texts in order."""

    def __init__(self, reranker: ListwiseReranker, name: str, cache: LruCache[CallKey, tuple[int, ...]]) -> None:
        self.reranker = reranker
        self._name = name
        self._cache = cache
        self._room = asyncio.Semaphore(reranker.settings.at_once)

    async def order(self, query: str, passages: Sequence[Passage], *, seconds: float = math.inf) -> list[int]:
        """Return the positions of the passages, best first, each once; repeated requests come from the cache."""
        key = (self.reranker.identity, query, *(passage.hash for passage in passages))
        known = self._cache.get(key)
        if known is not None:
            return list(known)
        settings = self.reranker.settings
        cut = [_cut(passage, settings.max_characters) for passage in passages]
        end = time.monotonic() + seconds
        answer = await _called(self._name, self._room, settings.timeout_ms, end, self.reranker.order(query, cut))
        order = repaired_order(answer, range(len(passages)))
        self._cache.put(key, tuple(order), len(order))
        return order

    async def close(self) -> None:
        """Close connections and release models."""
        await self.reranker.close()


async def _called(name: str, room: asyncio.Semaphore, timeout_ms: int, end: float, call: Awaitable[T]) -> T:
    """Await one call; convert every failure to an error of this project."""
    left = end - time.monotonic()
    seconds = min(timeout_ms / 1000, left)
    try:
        async with asyncio.timeout(None if seconds == math.inf else max(0.0, seconds)), room:
            count_call()
            return await call
    except TimeoutError:
        if seconds == left:
            raise DeadlineExceeded(f"the search's time was over before reranker [{name}] answered") from None
        raise RerankerError(f"reranker [{name}] took longer than {timeout_ms} ms (timeout_ms)") from None
    except (EsTtcError, BudgetExhausted):
        raise
    except Exception as error:  # a reranker of another package may raise any exception
        raise RerankerError(f"reranker [{name}] failed: {type(error).__name__}: {error}") from error
    finally:
        if asyncio.iscoroutine(call):
            call.close()  # one that was not started


def _is_finite(score: object) -> bool:
    return isinstance(score, int | float) and math.isfinite(score)


def _cut(passage: Passage, characters: int) -> Passage:
    return passage if len(passage.text) <= characters else replace(passage, text=passage.text[:characters])
