"""Traces of searches through a real engine: their spans, what the engine is told, and what is sent to a collector."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from es_ttc.encoders.base import Encoder
from es_ttc.serving import tracing
from tests.serving.client import call, search
from tests.serving.conftest import SearchStack
from tests.serving.relay import relay
from tests.support.gateway import gateway_to
from tests.support.servers import server_beside

ON_ONE_ENGINE = True

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
QUESTION = "which cat drinks milk while it is traced?"
STAGES = {"first_pass", "encode", "candidates", "features", "score"}


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Spans of this process, in the order in which they ended."""
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    tracing.use(provider)
    yield found
    tracing.use(None)


def blended(name: str, question: str = QUESTION) -> dict[str, Any]:
    section = {"query_text": question, "timeout": "20s"}
    return {"query": {"match": {"text": name}}, "size": 5, "rescore": {"window_size": 6, "ttc": section}}


def lineage(span: ReadableSpan, spans: dict[int, ReadableSpan]) -> list[str]:
    """Return the names of a span and of all above it."""
    names = [span.name]
    while span.parent is not None and span.parent.span_id in spans:
        span = spans[span.parent.span_id]
        names.append(span.name)
    return names


@pytest.mark.engine
@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])  # later, kNN and first pass run together
def test_a_search_is_one_trace(
    stack: SearchStack, encoder: Encoder, exporter: InMemorySpanExporter, known: bool
) -> None:
    path = f"/{stack.index}/_search"
    with gateway_to(stack.engine, encoder) as gateway:
        if known:
            assert call(gateway, "POST", path, blended("farmer", "another question")).status == 200
            exporter.clear()
        reply = call(gateway, "POST", path, blended("farmer"), CONTEXT)
    assert reply.json()["ttc"]["applied"] is True
    traced = [span for span in exporter.get_finished_spans() if f"{span.context.trace_id:032x}" == TRACE]
    spans = {span.context.span_id: span for span in traced}
    others = [span for span in exporter.get_finished_spans() if span not in traced]
    # The gateway's own: looks at the engine, and the text that its warm-up encodes.
    assert {span.name for span in others} <= {"engine GET", "engine HEAD", "encode"}
    assert not [span for span in others if QUESTION in str(span.attributes)]
    lines = [lineage(span, spans) for span in spans.values()]
    [root] = [span for span in spans.values() if span.name == "POST search"]
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == PARENT
    assert dict(root.attributes or {}) | {"http.response.status_code": 200, "es_ttc.applied": True} == root.attributes
    assert {line[0] for line in lines} >= STAGES | {"engine POST"}
    assert all(line[-1] == "POST search" for line in lines)
    below = {line[1] for line in lines if line[0] == "engine POST"}
    assert below >= {"first_pass", "candidates"}
    assert not [span for span in spans.values() if QUESTION in str(span.attributes)]


@pytest.mark.engine
def test_the_engine_gets_the_span_of_its_call_as_parent(
    stack: SearchStack, encoder: Encoder, exporter: InMemorySpanExporter
) -> None:
    with relay(stack.engine) as seen, gateway_to(seen.url, encoder) as gateway:
        seen.passed.clear()
        assert call(gateway, "GET", f"/{stack.index}/_count", headers=CONTEXT).status == 200
    [passed] = [one for one in seen.passed if "_count" in one.target]
    [span] = [one for one in exporter.get_finished_spans() if one.name == "engine GET" and one.parent is not None]
    assert passed.headers["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert (span.attributes or {})["url.path"] == f"/{stack.index}/_count"


@pytest.mark.engine
def test_an_error_s_text_is_not_in_a_trace(stack: SearchStack, exporter: InMemorySpanExporter) -> None:
    body = blended("farmer")
    body["rescore"]["ttc"] |= {"method": "sentmaxsim", "on_error": "fail"}
    assert search(stack.gateway, stack.index, body).status == 400
    spans = exporter.get_finished_spans()
    assert spans
    assert not [span for span in spans if span.events or "sentmaxsim" in str(span.status.description)]


@pytest.mark.engine
def test_without_traces_the_caller_s_context_passes_unchanged(stack: SearchStack, encoder: Encoder) -> None:
    with relay(stack.engine) as seen, gateway_to(seen.url, encoder) as gateway:
        call(gateway, "GET", f"/{stack.index}/_count", headers=CONTEXT)
    [passed] = [one for one in seen.passed if "_count" in one.target]
    assert passed.headers["traceparent"] == CONTEXT["traceparent"]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExportTraceServiceRequest]]:
    """A server that takes OTLP over HTTP, and what it has received."""
    received: list[ExportTraceServiceRequest] = []

    def take(path: str, body: bytes) -> tuple[int, bytes]:
        assert path == "/v1/traces"
        received.append(ExportTraceServiceRequest.FromString(body))
        return 200, b""

    with server_beside(take) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield received


@pytest.mark.engine
def test_spans_are_sent_when_the_gateway_ends(
    stack: SearchStack, encoder: Encoder, collector: list[ExportTraceServiceRequest]
) -> None:
    with gateway_to(stack.engine, encoder, traces=True) as gateway:
        assert search(gateway, stack.index, blended("farmer")).status == 200
    resources = [resource for request in collector for resource in request.resource_spans]
    named = {attribute.key: attribute.value.string_value for one in resources for attribute in one.resource.attributes}
    names = {span.name for resource in resources for scope in resource.scope_spans for span in scope.spans}
    assert named["service.name"] == "es-ttc-gateway"
    assert names >= {"POST search", "first_pass", "score", "engine POST"}
    assert tracing.span("score") is tracing.span("encode")  # nothing is traced any more
