"""A secured engine with two users who may not see everything, and a gateway in front of it."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.node import process
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.errors import ConfigurationError
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.playground import playground_routes
from es_ttc.settings import Settings
from tests.serving.client import Reply, call
from tests.serving.conftest import SearchStack, fill
from tests.serving.corpus import EVERYTHING, corpus
from tests.support.gateway import gateway_to
from tests.support.memory import data_folder
from tests.support.secured_node import ADMIN, PASSWORD, SUPERUSER, SecuredElasticsearch, basic

INDEX = "creatures"
HIDDEN_FROM = 30
MAY_SEE = {document["_id"] for document in corpus() if document["number"] < HIDDEN_FROM}
ANN = basic("ann", "password-of-ann")
BEN = basic("ben", "password-of-ben")
ROLES: dict[str, dict[str, Any]] = {
    "low_numbers": {"query": {"range": {"number": {"lt": HIDDEN_FROM}}}},
    "no_features": {"field_security": {"grant": ["*"], "except": ["ttc.*"]}},
}


@pytest.fixture(scope="session")
def secured(encoder: Encoder) -> Iterator[SearchStack]:
    """An engine that asks for credentials, with two users who may not see everything."""
    name = f"tests-{os.getpid()}-secured"
    spec = NodeSpec(
        cache_dir=Settings().cache_dir,
        name=name,
        port=0,
        data_dir=data_folder(name),
        heap="512m",
        owned=True,
        short_lived=True,
        keep_data=False,
    )
    try:
        node = process.start_node(spec, distribution=SecuredElasticsearch())
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Elasticsearch must be tested on CI: {error}")
        pytest.skip(f"no Elasticsearch: {error}")
    with node, gateway_to(node.url, encoder, further=playground_routes, write_timeout_ms=60_000, ui=True) as gateway:
        index = IndexSpec(encoder.identity, max_tokens=64)
        asyncio.run(fill(node.url.replace("//", f"//{SUPERUSER}:{PASSWORD}@"), INDEX, index, encoder, corpus()))
        for (role, rights), user in zip(ROLES.items(), ("ann", "ben"), strict=True):
            indices = [{"names": [INDEX], "privileges": ["read", "view_index_metadata"], **rights}]
            settle(node.url, f"/_security/role/{role}", {"indices": indices})
            settle(node.url, f"/_security/user/{user}", {"password": f"password-of-{user}", "roles": [role]})
        yield SearchStack(node.url, gateway, INDEX, index)


def settle(url: str, target: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = call(url, "POST", target, body, ADMIN)
    assert reply.status == 200, reply.body
    settled: dict[str, Any] = reply.json()
    return settled


def asked(url: str, headers: dict[str, str], **changes: Any) -> Reply:
    return call(url, "POST", f"/{INDEX}/_search", {"query": EVERYTHING, "size": 60} | changes, headers)


def api_key(url: str, roles: dict[str, Any]) -> dict[str, str]:
    made = settle(url, "/_security/api_key", {"name": "key", "role_descriptors": roles})
    return {"authorization": f"ApiKey {made['encoded']}"}
