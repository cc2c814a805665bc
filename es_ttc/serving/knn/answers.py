"""The engine's answers to the searches of a retrieval, and how they are asked for."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.errors import EngineError

Body = dict[str, Any]
Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SearchClient:
    """Ways to ask the engine; what is asked at once goes out at once.

    Attributes:
        searched: Answers `_search` bodies over what the caller searches, through his own door.
        beside: Answers `_search` bodies over side indices, each with its name or alias, through the gateway's door to
            them. An answer may be an error; it is empty where there is no such index.
    """

    searched: Callable[[Sequence[Body]], Awaitable[Sequence[Answer]]]
    beside: Callable[[Sequence[tuple[str, Body]]], Awaitable[Sequence[Answer]]]


def require_whole(answer: Mapping[str, Any]) -> None:
    """Refuse an answer to a search of ours that is an error, or comes from a part of the documents only.

    Raises:
        EngineError: It is.
    """
    if "error" in answer:
        raise refusal(answer.get("status"), answer)
    shards = answer.get("_shards", {})
    if answer.get("timed_out") or shards.get("failed"):
        raise EngineError(f"a kNN search was answered from a part of the documents only: {shards.get('failed')} shards")


def refusal(status: int | None, answer: Any) -> EngineError:
    """Return the error for an engine's refusal, with its reason where it gives one."""
    error = answer.get("error") if isinstance(answer, dict) else None
    cause = next(iter(error.get("root_cause") or ()), error) if isinstance(error, dict) else {"reason": error}
    why = f"it answered {status}" if cause.get("reason") is None else f"{cause['reason']}"
    return EngineError(f"the engine refused a kNN search: {why}", upstream_status=status, upstream=answer)
