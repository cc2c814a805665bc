"""Traces of requests with OpenTelemetry (extra `otel`): off by default, and then a span is one comparison.

A request's span has the caller's `traceparent` as its parent, the stages of a search as its children, and every call to
the engine below the stage that sends it. Where spans are sent is configured by OpenTelemetry's own variables
(``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER``...). Spans contain no query text, no
document and no credentials.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from es_ttc.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanKind

_Headers = list[tuple[bytes, bytes]]
Answered = Callable[[str, int, bool], None]
"""Records a request's kind, its status, and whether the methods were applied."""
_SERVICE = "es-ttc-gateway"
_CONTEXT_HEADERS = frozenset({b"traceparent", b"tracestate"})
_OFF: AbstractContextManager[None] = nullcontext()

_provider: "TracerProvider | None" = None


def start() -> None:
    """Send spans from now on, as OpenTelemetry's variables say."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigurationError("[traces] needs OpenTelemetry: pip install 'es-ttc[otel]'") from error
    try:
        provider = TracerProvider(
            resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", _SERVICE)})
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise ConfigurationError(f"a variable of OpenTelemetry (OTEL_*) is wrong: {error}") from error
    use(provider)


def use(provider: "TracerProvider | None") -> None:
    """Give spans to a provider; None for no spans."""
    global _provider
    _provider = provider


def stop_tracing() -> None:
    """Send what is left, and make no spans any more."""
    if _provider is not None:
        _provider.shutdown()
        use(None)


def span(name: str) -> AbstractContextManager[object]:
    """Return the span of a stage, below the present one."""
    return _OFF if _provider is None else _started(_provider, name)


def engine_call(method: str, raw_path: bytes, headers: _Headers) -> AbstractContextManager[_Headers]:
    """Return the span of one call to the engine, which gives the headers to send: the engine's parent is this span."""
    return nullcontext(headers) if _provider is None else _engine_call(_provider, method, raw_path, headers)


def request_span(method: str, headers: _Headers) -> AbstractContextManager[Answered]:
    """Return the span of a caller's request, below the caller's own; it gives what records how it was answered."""
    return nullcontext(_record_nothing) if _provider is None else _request_span(_provider, method, headers)


def _record_nothing(kind: str, status: int, applied: bool) -> None:
    """Do nothing."""


@contextmanager
def _request_span(provider: "TracerProvider", method: str, headers: _Headers) -> Iterator[Answered]:
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    parent = extract({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})
    with _started(provider, method, parent=parent, kind=SpanKind.SERVER) as made:

        def answered(kind: str, status: int, applied: bool) -> None:
            made.update_name(f"{method} {kind}")
            made.set_attributes(
                {
                    "http.request.method": method,
                    "http.response.status_code": status,
                    "es_ttc.kind": kind,
                    "es_ttc.applied": applied,
                }
            )
            if status >= 500:
                _mark_failed(made, str(status))

        yield answered


@contextmanager
def _engine_call(provider: "TracerProvider", method: str, raw_path: bytes, headers: _Headers) -> Iterator[_Headers]:
    from opentelemetry.propagate import inject
    from opentelemetry.trace import SpanKind

    with _started(provider, f"engine {method}", kind=SpanKind.CLIENT) as made:
        made.set_attributes({"http.request.method": method, "url.path": raw_path.decode("latin-1")})
        context: dict[str, str] = {}
        inject(context)
        without_context = [pair for pair in headers if pair[0].lower() not in _CONTEXT_HEADERS]
        yield [*without_context, *((name.encode(), value.encode()) for name, value in context.items())]


@contextmanager
def _started(
    provider: "TracerProvider", name: str, *, kind: "SpanKind | None" = None, parent: "Context | None" = None
) -> Iterator["Span"]:
    """Start a span; the text of an error is not recorded, because it may show what the caller sent."""
    from opentelemetry.trace import SpanKind

    with provider.get_tracer(__name__).start_as_current_span(
        name, parent, kind or SpanKind.INTERNAL, record_exception=False, set_status_on_exception=False
    ) as made:
        try:
            yield made
        except Exception as error:
            _mark_failed(made, type(error).__name__)
            raise


def _mark_failed(made: "Span", reason: str) -> None:
    from opentelemetry.trace import StatusCode

    made.set_status(StatusCode.ERROR, reason)
