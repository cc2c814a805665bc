"""The signals of a pooled query, kept with its pool: weights of blend are chosen from them without a search."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args

import numpy as np

from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.rescorers.blend.signals import SignalName
from es_ttc.rescorers.blend.weights import Trust
from es_ttc.vectors.tokens import Float32


@dataclass(frozen=True, slots=True, eq=False)
class LoggedSignals:
    """The signals of the k documents that blend scores for a query: ``(k, s)`` float32, NaN where one is lacking."""

    names: tuple[SignalName, ...]
    documents: tuple[str, ...]
    scores: Float32
    trust: Trust
    encoder: str

    @classmethod
    def of(cls, pool: Pool, pools: Pools) -> Self:
        """Return the signals of one pool."""
        return cls(pools.signals, pool.documents, pool.scores, pool.trust, pools.encoder)

    def as_dict(self) -> dict[str, Any]:
        """Return them as JSON, 16 bytes a document and signal at most."""
        return {
            "names": list(self.names),
            "documents": list(self.documents),
            "scores": base64.b64encode(self.scores.astype("<f4").tobytes()).decode(),
            "trust": {"words": self.trust.words, "vectors": self.trust.vectors},
            "encoder": self.encoder,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self | None:
        """Return stored signals; None if another version wrote them with signals that are unknown here."""
        names: tuple[SignalName, ...] = tuple(stored["names"])
        if not set(names) <= set(get_args(SignalName)):
            return None
        documents = tuple(stored["documents"])
        scores = np.frombuffer(base64.b64decode(stored["scores"]), "<f4").astype(np.float32)
        trust = Trust(stored["trust"]["words"], stored["trust"]["vectors"])
        return cls(names, documents, scores.reshape(len(documents), len(names)), trust, stored["encoder"])

    def pool(self, query: str, judged: Mapping[str, int]) -> Pool:
        """Return the pool with the grades of its documents; a document without a grade counts as not relevant."""
        return Pool(
            query,
            self.documents,
            self.scores,
            self.trust,
            grades=np.array([judged.get(document, 0) for document in self.documents], np.int64),
            behind=np.zeros(0, np.int64),
            judged=np.array(sorted(judged.values(), reverse=True), np.int64),
        )


def pools_of(index: str, signals: Sequence[tuple[str, LoggedSignals]], qrels: Mapping[str, Mapping[str, int]]) -> Pools:
    """Return the pools of judged queries whose signals are kept, with the judgements of now."""
    first = signals[0][1]
    pools = tuple(one.pool(query, qrels[query]) for query, one in signals)
    return Pools(index, "judgements", first.encoder, first.names, pools, {"index": index, "first_pass": "bm25"})
