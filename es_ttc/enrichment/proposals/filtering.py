"""Filter the proposals for a batch of documents, with two calls of the engine.

Frequencies are counted in the user's own fields. If enrichment were counted too, the result would depend on the order
in which workers process documents; vocabulary that has become common by enrichment is filtered on the query side, with
the frequencies of the enriched index.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.proposals.document_frequency import by_frequency, document_frequencies
from es_ttc.enrichment.proposals.phrases import DroppedPhrase, Phrase, analyse, candidate_phrases, clean_phrase, screen
from es_ttc.enrichment.proposals.plan import Plan
from es_ttc.enrichment.proposals.relevance import Relevance, by_similarity
from es_ttc.index.mappings.enrichment import EnrichmentTarget
from es_ttc.index.mappings.spec import ENRICHMENT

_CANDIDATES = 3  # number of candidates considered for one document, as a multiple of the phrases kept


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
    if plan.whole:
        rare = [(_whole(proposals), list[DroppedPhrase]()) for proposals, _ in documents]
    else:
        rare = await _rare(engine, target, plan, documents)
    if relevance is None:
        return [FilteredPhrases(_texts(phrases, plan), tuple(dropped)) for phrases, dropped in rare]
    similar = await relevance.similarities(
        [(" ".join(texts), phrases) for (_, texts), (phrases, _) in zip(documents, rare, strict=True)]
    )
    found = []
    for (phrases, dropped), cosines in zip(rare, similar, strict=True):
        like, unlike = by_similarity(phrases, cosines, least=relevance.least)
        found.append(FilteredPhrases(_texts(like, plan), (*dropped, *unlike), tuple(cosines)))
    return found


def _texts(phrases: Sequence[Phrase], plan: Plan) -> tuple[str, ...]:
    return tuple(phrase.text for phrase in phrases[: plan.most])


def _whole(proposals: Sequence[str]) -> list[Phrase]:
    """Return proposals as they are, without list signs and quotes."""
    return [Phrase(text, ()) for text in dict.fromkeys(map(clean_phrase, proposals)) if text]


async def _rare(
    engine: Engine, target: EnrichmentTarget, plan: Plan, documents: Sequence[tuple[Sequence[str], Sequence[str]]]
) -> list[tuple[list[Phrase], list[DroppedPhrase]]]:
    """Return each document's rare phrases, and what was dropped: first by form, then the common ones."""
    proposed = [
        candidate_phrases(proposals, most_words=plan.most_words, limit=_CANDIDATES * plan.most)
        for proposals, _ in documents
    ]
    owned = [list(texts) for _, texts in documents]
    everything = [text for each in (*proposed, *owned) for text in each]
    tokens = iter(await analyse(engine, target.index, ENRICHMENT, everything))
    of_phrases = [[next(tokens) for _ in each] for each in proposed]
    of_texts = [[next(tokens) for _ in each] for each in owned]
    screened = [screen(*each) for each in zip(proposed, of_phrases, of_texts, strict=True)]
    texts = [phrase.text for phrases, _ in screened for phrase in phrases]
    frequencies = await document_frequencies(engine, target.index, target.spec.text_fields, texts)
    found = []
    for phrases, dropped in screened:
        rare, common = by_frequency(phrases, frequencies, tau=plan.tau, present=False)
        found.append((rare, [*dropped, *common]))
    return found
