"""From proposals to what is written: the two filters over a batch of documents, with two calls of the engine.

Frequencies are counted in the user's own fields. Were enrichment counted too, what is kept would depend on the order in
which workers come to documents; vocabulary that enrichment has made common is met on the query side, where frequencies
are those of the enriched index.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from es_ttc.engine.protocol import Engine
from es_ttc.llm_enrichment.document_frequency import by_frequency, document_frequencies
from es_ttc.llm_enrichment.phrases import Dropped, analyse, candidates, screen
from es_ttc.llm_enrichment.plan import Plan
from es_ttc.mappings.enrichment import Enrichable
from es_ttc.mappings.spec import ENRICHMENT

_CANDIDATES = 3
"""Candidates looked at of one document, as a multiple of the phrases kept."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """What is left of one document's proposals.

    Attributes:
        kept: Phrases that are written.
        dropped: Those that are not, with the reason.
    """

    kept: tuple[str, ...]
    dropped: tuple[Dropped, ...]


async def filtered(
    engine: Engine, target: Enrichable, plan: Plan, documents: Sequence[tuple[Sequence[str], Sequence[str]]]
) -> list[Filtered]:
    """Filter the proposals for some documents.

    Args:
        engine: The engine.
        target: Their index.
        plan: With tau and the numbers.
        documents: For each the proposals, and the texts of its fields.
    """
    proposed = [
        candidates(proposals, most_words=plan.most_words, limit=_CANDIDATES * plan.most) for proposals, _ in documents
    ]
    owned = [list(texts) for _, texts in documents]
    everything = [text for each in (*proposed, *owned) for text in each]
    tokens = iter(await analyse(engine, target.index, ENRICHMENT, everything))
    of_phrases = [[next(tokens) for _ in each] for each in proposed]
    of_texts = [[next(tokens) for _ in each] for each in owned]
    screened = [screen(*each) for each in zip(proposed, of_phrases, of_texts, strict=True)]
    wanted = [phrase.text for phrases, _ in screened for phrase in phrases]
    frequencies = await document_frequencies(engine, target.index, target.spec.text_fields, wanted)
    found = []
    for phrases, early in screened:
        kept, late = by_frequency(phrases, frequencies, tau=plan.tau, present=False)
        found.append(Filtered(tuple(phrase.text for phrase in kept[: plan.most]), (*early, *late)))
    return found
