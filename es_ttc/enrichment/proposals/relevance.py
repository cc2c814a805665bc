"""The relevance filter: the cosine of a phrase and its document (Doc2Query--, Gospodinov et al., ECIR 2023).

The paper scores each generated query against its document by a relevance model and keeps those above a threshold, which
it sets as a share of all queries of the corpus (30 % works best there). Here the index's own frozen encoder computes
the scores, with a phrase encoded as a query; a dry run shows the similarities that shares of the phrases reach.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.enrichment.proposals.phrases import DroppedPhrase, DropReason, Phrase
from es_ttc.enrichment.proposals.plan import Plan
from es_ttc.errors import EncoderMismatch
from es_ttc.index.mappings.encoder import load_encoder_for
from es_ttc.index.mappings.enrichment import EnrichmentTarget
from es_ttc.settings import Settings


@dataclass(frozen=True, slots=True)
class Relevance:
    """A filter of phrases by similarity."""

    encoder: Encoder
    least: float

    async def similarities(self, documents: Sequence[tuple[str, Sequence[Phrase]]]) -> list[list[float]]:
        """Return the cosine of each phrase and its document."""
        return await asyncio.to_thread(self._similarities, documents)

    def _similarities(self, documents: Sequence[tuple[str, Sequence[Phrase]]]) -> list[list[float]]:
        texts = [text for text, phrases in documents for _ in phrases]
        phrases = [phrase.text for _, each in documents for phrase in each]
        distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        ours = self.encoder.encode(list(distinct), role="document", tokens=False).pooled
        theirs = self.encoder.encode(phrases, role="query", tokens=False).pooled
        cosines = iter(np.einsum("nd,nd->n", ours[[distinct[text] for text in texts]], theirs).tolist())
        return [[next(cosines) for _ in each] for _, each in documents]


def by_similarity(
    phrases: Sequence[Phrase], similarities: Sequence[float], *, least: float
) -> tuple[list[Phrase], list[DroppedPhrase]]:
    """Keep phrases whose similarity to their document is ``least`` or more."""
    kept: list[Phrase] = []
    dropped: list[DroppedPhrase] = []
    for phrase, similarity in zip(phrases, similarities, strict=True):
        if similarity >= least:
            kept.append(phrase)
        else:
            dropped.append(DroppedPhrase(phrase.text, DropReason.UNLIKE, similarity=similarity))
    return kept, dropped


async def phrase_relevance(plan: Plan, target: EnrichmentTarget, settings: Settings) -> Relevance | None:
    """Return the filter of a plan, with the encoder of its index; None if the plan has none."""
    if plan.min_similarity is None:
        return None
    encoder = await asyncio.to_thread(_encoder_of, target.spec.encoder, settings.chosen_encoder, settings.cache_dir)
    return Relevance(encoder, plan.min_similarity)


@lru_cache(maxsize=2)
def _encoder_of(identity: EncoderIdentity, name: str | None, cache_dir: Path) -> Encoder:
    """Return the encoder of an index, loaded once per process; refuse another one that is named."""
    encoder = load_encoder_for(identity, name, cache_dir=cache_dir)
    if encoder.identity != identity:
        raise EncoderMismatch(
            f"phrases are to be compared with documents by the index's encoder [{identity.key}], and the encoder "
            f"here is [{encoder.identity.key}]: set ES_TTC_ENCODER to the index's, for workers too"
        )
    return encoder
