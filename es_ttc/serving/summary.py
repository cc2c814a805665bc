"""What a response says of a method: whether it was applied, to what, why not, and how long its stages took."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from es_ttc.errors import EsTtcError
from es_ttc.rescorers.base import Query
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Summary:
    """The part of a response that describes one method.

    Attributes:
        took: Milliseconds of each stage.
        parts: What the method tells besides, in the order in which it is shown.
        reason: Why the method was not applied, or not to all documents; None if it was.
    """

    method: str
    took: Mapping[str, float]
    parts: Mapping[str, Any]
    applied: bool = True
    reason: str | None = None

    @classmethod
    def fell_back(cls, method: str, reason: object, took: Mapping[str, float], **parts: Any) -> "Summary":
        """Return the summary of a method that was not applied."""
        return cls(method, took, parts, applied=False, reason=str(reason))

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as the response shows it."""
        reason = {} if self.reason is None else {"reason": self.reason}
        took = {stage: round(ms, 2) for stage, ms in self.took.items()}
        return {"method": self.method, "applied": self.applied, **self.parts, **reason, "took": took}


def shares_read(query: Query) -> dict[str, Any]:
    """Return what a summary says of a query: the shares of its texts that were encoded, unless all of each was."""
    shares = query.encoded_shares
    return {"query_encoded_share": [round(share, 4) for share in shares]} if min(shares, default=1) < 1 else {}


def record_fallback(metrics: Metrics, event: str, method: str, reason: EsTtcError) -> None:
    """Count and log a fallback."""
    metrics.fallbacks.labels(reason.type).inc()
    log.warning(event, method=method, reason=str(reason))
