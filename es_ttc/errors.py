"""Every error that es-ttc raises on purpose, with the shape that the engines give theirs.

A message is one sentence that names the field, the value and the fix: it is what a person reads on stderr and
what a client reads in ``error.reason``.
"""

from enum import StrEnum
from typing import Any, ClassVar


class EsTtcError(Exception):
    """Base of all deliberate errors.

    Attributes:
        status: The HTTP status that the gateway answers with.
        type: The engine's name for this kind of error (``error.type`` in its JSON).
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "ttc_exception"

    def body(self) -> dict[str, Any]:
        """Return the error in the engines' own JSON shape."""
        cause = {"type": self.type, "reason": str(self)}
        return {"error": {"root_cause": [cause], **cause}, "status": self.status}


class InvalidRequest(EsTtcError):
    """The request is malformed: unknown key, wrong type, value out of range."""

    status = 400
    type = "illegal_argument_exception"


class UnknownIndex(InvalidRequest):
    """The searched index does not exist."""

    status = 404
    type = "index_not_found_exception"


class RequestTooLarge(InvalidRequest):
    """The body of a request is too long."""

    status = 413
    type = "content_too_long_exception"


class TooManyRequests(EsTtcError):
    """More requests or windows are in flight than allowed.

    Args:
        reason: One sentence.
        retry_after: Seconds after which the caller may try again, for the header `Retry-After`.
    """

    status = 429
    type = "rejected_execution_exception"

    def __init__(self, reason: str, *, retry_after: int = 1) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class NotSignedIn(EsTtcError):
    """The caller sent no credentials or wrong ones."""

    status = 401
    type = "security_exception"


class NotAllowed(EsTtcError):
    """The caller lacks the right, or another page sent the request."""

    status = 403
    type = "security_exception"


class MissingText(EsTtcError):
    """A method needs one text, and the search has none or several."""

    status = 400
    type = "ttc_missing_text_exception"


class SeveralTexts(MissingText):
    """The query has several texts: the types of these fields may tell which one ranks."""

    def __init__(self, message: str, fields: frozenset[str]) -> None:
        super().__init__(message)
        self.fields = fields


class MissingFeature(EsTtcError):
    """A method needs a feature (token vectors, norms, ...) that the index lacks."""

    status = 400
    type = "ttc_missing_feature_exception"


class EncoderMismatch(EsTtcError):
    """The query's encoder is not the one that the documents were encoded with."""

    status = 400
    type = "ttc_encoder_mismatch_exception"


class ConfigurationError(EsTtcError):
    """A setting, flag, file or optional package is missing or wrong; the message says what to do."""

    type = "ttc_configuration_exception"


class UnsupportedEngine(ConfigurationError):
    """The engine is older than the oldest version that es-ttc works with."""

    status = 400
    type = "ttc_unsupported_engine_exception"


class EncoderError(EsTtcError):
    """A text could not be encoded."""

    type = "ttc_encoder_exception"


class EncoderBusy(EsTtcError):
    """The encoder is not loaded, and no other may be loaded now: one is loading, or too many were."""

    status = 503
    type = "ttc_encoder_busy_exception"


class EngineError(EsTtcError):
    """The engine answered a request of es-ttc with an error.

    Args:
        reason: One sentence: the call and the engine's own reason.
        upstream_status: The engine's HTTP status.
        upstream: The engine's decoded error body, if it had one.
    """

    status = 502
    type = "ttc_engine_exception"

    def __init__(self, reason: str, *, upstream_status: int | None = None, upstream: Any = None) -> None:
        super().__init__(reason)
        self.upstream_status = upstream_status
        self.upstream = upstream


class EngineUnavailable(EngineError):
    """The engine could not be reached, or did not answer in time."""

    status = 503
    type = "ttc_engine_unavailable_exception"


class LlmFailure(StrEnum):
    """Why a language model gave no answer."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    SERVER = "server"
    REFUSED = "refused"
    MALFORMED = "malformed"
    CIRCUIT_OPEN = "circuit_open"


class LlmError(EsTtcError):
    """A language model gave no usable answer.

    Args:
        reason: One sentence, without anything of what was sent.
        failure: What kind of failure it was.
        status: The endpoint's HTTP status, where it answered.
        retry_after: Seconds until it is worth asking again, where that is known.
    """

    status = 502
    type = "ttc_llm_exception"

    def __init__(
        self, reason: str, failure: LlmFailure, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.failure = failure
        self.upstream_status = status
        self.retry_after = retry_after


class DeadlineExceeded(EsTtcError):
    """Scoring did not finish inside its time budget."""

    status = 503
    type = "ttc_deadline_exceeded_exception"


class NodeError(EsTtcError):
    """The embedded engine node could not be fetched, started or stopped.

    Args:
        reason: One sentence: what failed and why.
        log_tail: The last lines of the node's log, where it had begun to write one.
    """

    type = "ttc_node_exception"

    def __init__(self, reason: str, *, log_tail: str = "") -> None:
        super().__init__(reason)
        self.log_tail = log_tail
