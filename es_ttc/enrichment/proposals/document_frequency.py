"""Document frequencies of phrases, and the filter based on them (SIRA, section 3.2).

Frequencies are exact and current: one search with one filter per phrase, whatever the number of phrases. They are those
of the whole index, not of a shard.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.engine.protocol import SearchApi
from es_ttc.enrichment.proposals.phrases import DroppedPhrase, DropReason, Phrase
from es_ttc.errors import EngineError, InvalidRequest

MAX_PHRASES = 1_000  # phrases per search
DEFAULT_TAU = 0.05  # maximum share of the documents that may have a phrase; the paper gives no value


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Number of documents of an index, |C|, and of those with a phrase in any of the fields."""

    documents: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FieldFrequencies:
    """What BM25 takes a word's IDF from: documents that have a field, and those with a word in it."""

    documents: Mapping[str, int]
    counts: Mapping[str, Mapping[str, int]]


async def document_frequencies(
    engine: SearchApi, index: str, fields: Sequence[str], phrases: Iterable[str]
) -> Frequencies:
    """Count the documents with each phrase in one of the fields, by each field's analyzer."""
    distinct = list(dict.fromkeys(phrases))
    documents, counts = await _counted(engine, index, [_having(phrase, fields) for phrase in distinct])
    return Frequencies(documents, dict(zip(distinct, counts, strict=True)))


async def field_frequencies(
    engine: SearchApi, index: str, fields: Sequence[str], words: Iterable[str]
) -> FieldFrequencies:
    """Count the documents that have each field, and those with each word in it."""
    distinct = list(dict.fromkeys(words))
    filters: list[dict[str, Any]] = [{"exists": {"field": field}} for field in fields]
    filters += [{"match": {field: word}} for field in fields for word in distinct]
    _, counts = await _counted(engine, index, filters)
    of_words = iter(counts[len(fields) :])
    return FieldFrequencies(
        dict(zip(fields, counts, strict=False)),
        {field: {word: next(of_words) for word in distinct} for field in fields},
    )


def by_frequency(
    phrases: Sequence[Phrase], frequencies: Frequencies, *, tau: float, present: bool
) -> tuple[list[Phrase], list[DroppedPhrase]]:
    """Keep phrases with DF <= tau |C|, and with `present`, on the query side, DF > 0: others match nothing there."""
    check_tau(tau)
    kept: list[Phrase] = []
    dropped: list[DroppedPhrase] = []
    for phrase in phrases:
        documents = frequencies.counts[phrase.text]
        if documents > tau * frequencies.documents:
            dropped.append(DroppedPhrase(phrase.text, DropReason.TOO_COMMON, documents))
        elif present and not documents:
            dropped.append(DroppedPhrase(phrase.text, DropReason.ABSENT, documents))
        else:
            kept.append(phrase)
    return kept, dropped


def check_tau(tau: float) -> None:
    """Raise an error for an invalid tau."""
    if not 0 <= tau <= 1:
        raise InvalidRequest(
            f"[tau] must lie between 0 and 1, the share of documents that may have a phrase, got {tau:g}"
        )


async def _counted(engine: SearchApi, index: str, filters: Sequence[Mapping[str, Any]]) -> tuple[int, list[int]]:
    """Return the number of documents, and of those that match each filter."""
    counts: list[int] = []
    documents = 0
    for start in range(0, max(len(filters), 1), MAX_PHRASES):
        part = filters[start : start + MAX_PHRASES]
        body: dict[str, Any] = {"size": 0, "track_total_hits": True}
        if part:
            body["aggs"] = {"phrases": {"filters": {"filters": [*part]}}}
        answer = await engine.search(index, body)
        if answer.get("timed_out") or answer["_shards"]["failed"]:
            raise EngineError(
                f"index [{index}] answered from a part of its shards only, so no document frequency is right"
            )
        documents = answer["hits"]["total"]["value"]
        if part:
            counts += [bucket["doc_count"] for bucket in answer["aggregations"]["phrases"]["buckets"]]
    return documents, counts


def _having(phrase: str, fields: Sequence[str]) -> dict[str, Any]:
    return {"multi_match": {"query": phrase, "type": "phrase", "fields": list(fields)}}
