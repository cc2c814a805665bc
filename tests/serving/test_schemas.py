"""The descriptions of the gateway's requests: complete, accepted by validators, and true of the running gateway."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema_rs import Draft202012Validator
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from es_ttc.encoders.base import Encoder
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import registry
from es_ttc.serving.admin.openapi import OPERATIONS, openapi, routes
from es_ttc.serving.admin.search_schema import search_body_schema
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.process import OnlyProcess
from es_ttc.serving.search import Searches
from es_ttc.settings import GatewaySettings
from tests.serving.client import call, search
from tests.serving.conftest import SearchStack
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = 12
CHECKED = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
UNCHECKED = frozenset({"/_ttc/score", "/_ttc/encode"})
"""CBOR frames behind a token; tests/serving/test_sidecar.py generates these."""


@pytest.fixture(scope="module")
def gateway(opensearch_url: str, encoder: Encoder) -> Iterator[str]:
    index = "ttc-test-schemas-jobs"
    with gateway_to(opensearch_url, encoder, rerank_timeout_ms=60_000, jobs_index=index) as url:
        yield url
    call(opensearch_url, "DELETE", f"/{index}*?expand_wildcards=all")


def test_every_route_is_described() -> None:
    described = {(operation.path.rstrip("/"), operation.method.upper()) for operation in OPERATIONS}
    gateway = Gateway(GatewaySettings(), None, OnlyProcess())
    own = routes(gateway, Searches(gateway), lambda: True)
    served = {(route.path.rstrip("/"), method) for route in own for method in route.methods or ()}
    assert {each for each in served if each[1] != "HEAD"} == described


@pytest.mark.engine
def test_the_gateway_serves_its_description(gateway: str) -> None:
    assert call(gateway, "GET", "/_ttc/openapi.json").json() == openapi()
    assert call(gateway, "GET", "/_ttc/search.schema.json").json() == search_body_schema()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("method", "path"), [(one.method, one.path) for one in OPERATIONS if one.path not in UNCHECKED]
)
def test_generated_requests_are_answered_as_described(gateway: str, method: str, path: str) -> None:
    answer_generated(gateway, method, path, GenerationMode.POSITIVE, CHECKED)


@pytest.mark.engine
@pytest.mark.parametrize("path", [one.path for one in OPERATIONS if one.body and one.path not in UNCHECKED])
def test_generated_requests_of_another_form_are_refused(gateway: str, path: str) -> None:
    answer_generated(gateway, "post", path, GenerationMode.NEGATIVE, [*CHECKED, negative_data_rejection])


def answer_generated(
    gateway: str, method: str, path: str, mode: GenerationMode, checks: list[Callable[..., bool | None]]
) -> None:
    """Send generated requests to one endpoint, and check its responses."""
    operation = schemathesis.openapi.from_url(f"{gateway}/_ttc/openapi.json")[path][method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def check(case: Case[Any]) -> None:
        case.call_and_validate(checks=checks, timeout=60)

    check()


def test_the_schema_of_a_search_body_is_one() -> None:
    meta = json.dumps(search_body_schema())
    assert Draft202012Validator(meta).is_valid({})


def bodies_of_the_docs() -> Iterator[tuple[str, Any]]:
    """Yield the search bodies with sections that the documentation shows, with the pages' names."""
    for page in sorted(DOCS.rglob("*.md")):
        for block in re.findall(r"```(?:json|console|http)?\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for found in re.findall(r"\{.*\}", block, re.DOTALL):
                try:
                    body = json.loads(found)
                except ValueError:
                    continue
                if '"ttc"' in found and {"rescore", "knn", "query"} & body.keys():
                    yield page.name, body


def test_the_examples_of_the_docs_are_valid() -> None:
    validator = Draft202012Validator(search_body_schema())
    examples = list(bodies_of_the_docs())
    assert len(examples) > 10
    for page, body in examples:
        assert not list(validator.iter_errors(body)), (page, body)


@pytest.mark.parametrize("name", [*registry.names(), *STRATEGIES])
def test_a_method_s_parameters_are_validated(name: str) -> None:
    validator = Draft202012Validator(search_body_schema())
    params = registry.load(name).Params if name in registry.names() else STRATEGIES[name].Params
    required = {key for key, field in params.model_fields.items() if field.is_required()}

    def body(**values: Any) -> dict[str, Any]:
        return {"rescore": [{"window_size": 10, "ttc": {"method": name, "query_text": "x", "params": values}}]}

    assert validator.is_valid(body()) == (not required)
    assert not validator.is_valid(body(nosuch=1))


SECTIONS: list[tuple[str, dict[str, Any]]] = [
    ("rescore", {}),
    ("rescore", {"method": "spectral", "query_text": "x", "params": {"scales": [1, 10]}}),
    ("rescore", {"params": {"signals": {"lexical": 1}}, "candidates": {"knn": 5}}),
    ("rescore", {"method": "spectral", "params": {"signals": {"lexical": 1}}}),
    ("rescore", {"method": "nosuch"}),
    ("rescore", {"metod": "spectral"}),
    ("rescore", {"score_mode": "sum"}),
    ("rescore", {"query_text": "x", "query_texts": ["y"]}),
    ("rescore", {"parts": "each", "query_texts": ["x", "y"]}),
    ("rescore", {"parts": "each", "query_texts": ["x"]}),
    ("rescore", {"parts": "each"}),
    ("rescore", {"parts": "all", "query_texts": ["x", "y"]}),
    ("rescore", {"parts": "each", "query_texts": ["x", "y"], "method": "rr", "params": {"reranker": "dense"}}),
    ("knn", {"method": "nnn", "parts": "each"}),
    ("knn", {"method": "nnn", "params": {"l1": 0.1}}),
    ("knn", {"params": {"l1": 0.1}}),
    ("knn", {"method": "nnn", "score_mode": "max"}),
    ("query", {"method": "rm3", "query_text": "x", "params": {"tau": 0.1}}),
    ("query", {"method": "sira"}),
    ("query", {"method": "rm3", "query_text": "x", "query_texts": ["y"]}),
]


@pytest.mark.engine
@pytest.mark.parametrize(("hook", "section"), SECTIONS)
def test_the_schema_and_the_gateway_agree(hook: str, section: dict[str, Any], stack: SearchStack) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "rescore": {"query": {"match": {"text": "cat"}}, "rescore": {"ttc": section}},
        "knn": {"knn": {"field": "ttc.vector", "query_text": "cat", "k": 3, "num_candidates": 9, "ttc": section}},
        "query": {"query": {"ttc": section}},
    }
    valid = Draft202012Validator(search_body_schema()).is_valid(bodies[hook])
    reply = search(stack.gateway, stack.index, bodies[hook])
    assert reply.status == (200 if valid else 400), reply.body
