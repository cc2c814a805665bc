"""The engine's scores of each part of a question: those of the caller's query with the part's text in place of its own.

The first pass itself asks the engine for them, by one named query with a score for each part (`ttc-part-0`, ...).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from es_ttc.serving.plan.query_parts import PART, named, with_named
from es_ttc.serving.request.body import with_text
from es_ttc.vectors.tokens import Float32

_MAX_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class PartWords:
    """What the engine is asked for.

    Attributes:
        queries: The query of each part; empty if the engine cannot be asked for their scores.
        reason: Why it cannot, or None.
    """

    queries: Sequence[Mapping[str, Any]] = field(default_factory=list)
    reason: str | None = None

    @classmethod
    def of(cls, query: Any, texts: Sequence[str]) -> "PartWords":
        """Return the queries of texts in place of those of a query."""
        try:
            first = with_text(query, texts[0])  # which has equal clauses once
        except RecursionError:
            return cls(reason="[query] is nested too deeply")
        if first is None:
            return cls(reason="the query has no full-text clause in which a part's text could stand")
        if len(texts) * len(repr(first)) > _MAX_CHARACTERS:
            return cls(reason="the query's full-text clauses are too long to be asked for each part")
        return cls([named(with_text(first, text), f"{PART}{number}") for number, text in enumerate(texts)])

    def asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a search's body that asks for the scores of each part."""
        return {**body, "post_filter": with_named(body.get("post_filter"), self.queries)} if self.queries else {**body}

    def scores(self, hits: Sequence[Mapping[str, Any]]) -> Float32 | None:
        """Return the scores of each part's words, ``(p, n)``; None if the engine was not asked."""
        if not self.queries:
            return None
        matched = [hit.get("matched_queries") or {} for hit in hits]
        rows = [[of_hit.get(f"{PART}{number}", 0.0) for of_hit in matched] for number in range(len(self.queries))]
        return np.array(rows, np.float32).reshape(len(rows), len(hits))
