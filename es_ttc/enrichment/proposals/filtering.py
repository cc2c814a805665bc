"""Filter the proposals for a batch of documents, with two calls of the engine.

Frequencies are counted in the user's own fields. If enrichment were counted too, the result would depend on the order
in which workers process documents; vocabulary that has become common by enrichment is filtered on the query side, with
the frequencies of the enriched index.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.proposals.document_frequency import by_frequency, document_frequencies
from es_ttc.enrichment.proposals.phrases import DroppedPhrase, Phrase, analyse, candidates, clean, screen
from es_ttc.enrichment.proposals.plan import Plan
from es_ttc.enrichment.proposals.relevance import Relevance, by_similarity
from es_ttc.index.mappings.enrichment import EnrichmentTarget
from es_ttc.index.mappings.spec import ENRICHMENT

_CANDIDATES = 3
"""Number of candidates considered for one document, as a multiple of the phrases kept."""


@dataclass(frozen=True, slots=True)
class FilteredPhrases:
    """One document's phrases after the filters."""

    kept: tuple[str, ...]
    dropped: tuple[DroppedPhrase, ...]
    similarities: tuple[float, ...] = ()


async def filtered(
    engine: Engine,
    target: EnrichmentTarget,
    plan: Plan,
    documents: Sequence[tuple[Sequence[str], Sequence[str]]],
    relevance: Relevance | None = None,
) -> list[FilteredPhrases]:
    """Filter the proposals for some documents."""
    owned = [list(texts) for _, texts in documents]
    if plan.whole:
        rare = [(_whole(proposals), list[DroppedPhrase]()) for proposals, _ in documents]
        early: list[list[DroppedPhrase]] = [[] for _ in documents]
    else:
        rare, early = await _rare(engine, target, plan, documents)
    like: list[tuple[list[Phrase], list[DroppedPhrase]]] = [(phrases, []) for phrases, _ in rare]
    similar: list[list[float]] = [[] for _ in rare]
    if relevance is not None:
        texts = [" ".join(each) for each in owned]
        similar = await relevance.similarities(
            [(text, phrases) for text, (phrases, _) in zip(texts, rare, strict=True)]
        )
        like = [
            by_similarity(phrases, cosines, least=relevance.least)
            for (phrases, _), cosines in zip(rare, similar, strict=True)
        ]
    return [
        FilteredPhrases(tuple(phrase.text for phrase in kept[: plan.most]), (*first, *common, *unlike), tuple(cosines))
        for first, (_, common), (kept, unlike), cosines in zip(early, rare, like, similar, strict=True)
    ]


def _whole(proposals: Sequence[str]) -> list[Phrase]:
    """Return proposals as they are, without list signs and quotes."""
    return [Phrase(text, ()) for text in dict.fromkeys(map(clean, proposals)) if text]


async def _rare(
    engine: Engine, target: EnrichmentTarget, plan: Plan, documents: Sequence[tuple[Sequence[str], Sequence[str]]]
) -> tuple[list[tuple[list[Phrase], list[DroppedPhrase]]], list[list[DroppedPhrase]]]:
    """Return each document's rare phrases with its common ones, and what was dropped before these were counted."""
    proposed = [
        candidates(proposals, most_words=plan.most_words, limit=_CANDIDATES * plan.most) for proposals, _ in documents
    ]
    owned = [list(texts) for _, texts in documents]
    everything = [text for each in (*proposed, *owned) for text in each]
    tokens = iter(await analyse(engine, target.index, ENRICHMENT, everything))
    of_phrases = [[next(tokens) for _ in each] for each in proposed]
    of_texts = [[next(tokens) for _ in each] for each in owned]
    screened = [screen(*each) for each in zip(proposed, of_phrases, of_texts, strict=True)]
    texts = [phrase.text for phrases, _ in screened for phrase in phrases]
    frequencies = await document_frequencies(engine, target.index, target.spec.text_fields, texts)
    rare = [by_frequency(phrases, frequencies, tau=plan.tau, present=False) for phrases, _ in screened]
    return rare, [dropped for _, dropped in screened]
