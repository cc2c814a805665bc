"""Passages with `context`: with the words around them, joined where they meet, and with their text.

The text is what the caller may read: that of the hits if they have their whole `_source`, else of a further search.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from es_ttc.common.markup import blanked
from es_ttc.common.whole_words import with_context
from es_ttc.index.ingest.compose import compose
from es_ttc.serving.engine import require_complete
from es_ttc.serving.features.keys import content_ids
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.pool import BoundedPool
from es_ttc.serving.rescore.two_requests import hits_with_texts
from es_ttc.serving.rescore.window import SearchAgain

_Passage = dict[str, Any]


async def add_context(
    hits: Sequence[dict[str, Any]], plan: SearchPlan, search_again: SearchAgain, pool: BoundedPool
) -> None:
    """Put passages with context in place of those of hits."""
    of_hits: list[list[_Passage]] = [hit["_ttc"]["passages"] for hit in hits]
    fields = sorted({passage["field"] for passages in of_hits for passage in passages})
    if not fields or plan.section.context is None:
        return
    sources = await _sources(hits, fields, plan, search_again)
    widened = await pool.run(_widened, of_hits, sources, plan.section.context)
    for hit, passages in zip(hits, widened, strict=True):
        hit["_ttc"]["passages"] = passages


async def _sources(
    hits: Sequence[dict[str, Any]], fields: Sequence[str], plan: SearchPlan, search_again: SearchAgain
) -> list[Mapping[str, Any]]:
    """Return each hit's fields as the caller may read them; none of a document that has changed since."""
    if plan.shows_source:
        return [hit.get("_source", {}) for hit in hits]
    answer, _ = await search_again(hits_with_texts(plan.body, hits, fields))
    require_complete(answer, "the texts of passages could not be read")
    full = answer["hits"]["hits"]
    texts = {document: hit["fields"] for document, hit in zip(content_ids(full), full, strict=True)}
    return [texts.get(document, {}) for document in content_ids(hits)]


def _widened(
    of_hits: Sequence[Sequence[_Passage]], sources: Sequence[Mapping[str, Any]], words: int
) -> list[list[_Passage]]:
    return [in_context(passages, source, words) for passages, source in zip(of_hits, sources, strict=True)]


def in_context(passages: Sequence[_Passage], source: Mapping[str, Any], words: int) -> list[_Passage]:
    """Return a document's passages with so many words on both sides and their text, best first.

    Those of a field that meet become a passage with the best of their scores. Those whose text is not in the source
    stay positions.
    """
    of_fields: dict[str, list[_Passage]] = defaultdict(list)
    for passage in passages:
        of_fields[passage["field"]].append(passage)
    shown: list[_Passage] = []
    for field, own in of_fields.items():
        text, _ = compose(source, [field])
        shown += own if any(passage["end"] > len(text) for passage in own) else _joined(own, text, words)
    return sorted(shown, key=lambda passage: -passage["score"])


def _joined(passages: Sequence[_Passage], text: str, words: int) -> list[_Passage]:
    """Return the passages of a text with context, first to last."""
    visible = blanked(text)  # a passage does not begin or end inside a tag
    joined: list[_Passage] = []
    for passage in sorted(passages, key=lambda passage: passage["start"]):
        start, end = with_context(visible, passage["start"], passage["end"], words)
        last = joined[-1] if joined else None
        if last is None or visible[last["end"] : start].strip():
            joined.append(last := {**passage, "start": start, "length": len(text)})
        last |= {"end": end, "score": max(last["score"], passage["score"])}
        last["text"] = text[last["start"] : end]
    return joined
