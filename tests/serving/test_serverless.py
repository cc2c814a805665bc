"""Elasticsearch Serverless, which nobody can run: a real Elasticsearch behind a relay that refuses what it refuses.

What is refused is what Elasticsearch's own code does not mark as public for Serverless: interfaces (`ServerlessScope`)
and settings (`ServerlessPublic`); see docs/reference/engines.md.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.versions import RANK_VECTORS
from es_ttc.errors import EngineError
from es_ttc.index.attach.source import settled_writes
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.serving.client import Reply, call, search
from tests.serving.corpus import corpus
from tests.serving.relay import Passed, relay
from tests.support.gateway import gateway_to

INTERNAL = re.compile(
    r"^/(_nodes|_cluster|_snapshot|_tasks)\b|/(_stats|_segments|_flush|_forcemerge|_close|_open|_recovery)\b"
)
MANAGED = frozenset(
    {
        "number_of_shards", "number_of_routing_shards", "routing_partition_size", "number_of_replicas",
        "auto_expand_replicas", "max_result_window", "max_rescore_window", "mapping.nested_objects.limit",
    }
)  # fmt: skip
REFUSED = "not available when running in serverless mode"


@contextmanager
def serverless(engine: str) -> Iterator[str]:
    """Run the relay."""

    def refusal(passed: Passed) -> Reply | None:
        path = passed.target.partition("?")[0]
        if path == "/" and passed.method == "GET":
            info = call(engine, "GET", "/").json()
            info["version"] |= {"number": "8.11.0", "build_flavor": "serverless"}
            return _reply(200, info)
        if INTERNAL.search(path):
            reason = f"Request for uri [{path}] with method [{passed.method}] exists but is {REFUSED}"
            return _error(410, "api_not_available_exception", reason)
        if passed.method == "PUT" and path.count("/") == 1:
            given = orjson.loads(passed.body or b"{}").get("settings", {}).get("index", {})
            if wrong := sorted(MANAGED.intersection(given)):
                settings = ",".join(f"index.{name}" for name in wrong)
                return _error(400, "illegal_argument_exception", f"Settings [{settings}] are {REFUSED}")
        return None

    with relay(engine) as running:
        running.before = refusal
        yield running.url


def _error(status: int, kind: str, reason: str) -> Reply:
    cause = {"type": kind, "reason": reason}
    return _reply(status, {"error": {"root_cause": [cause], **cause}, "status": status})


def _reply(status: int, body: object) -> Reply:
    headers = {"content-type": "application/json", "x-elastic-product": "Elasticsearch"}
    return Reply(status, headers, orjson.dumps(body))


@pytest.mark.parametrize("engine_url", ["elasticsearch"], indirect=True)
async def test_an_index_of_ours_works_and_an_attached_one_is_refused(
    engine_url: str, index_name: str, encoder: Encoder
) -> None:
    with serverless(engine_url) as url:
        async with connected(EngineSettings(engine=url)) as engine:
            found = await engine.capabilities()
            assert (str(found.engine), found.engine.too_old, found.engine.unmaintained) == (
                "Elasticsearch Serverless",
                False,
                False,
            )
            assert found.has(RANK_VECTORS)
            spec = IndexSpec(encoder.identity, max_tokens=64)
            await create_index(engine, index_name, spec)
            await ingest(engine, index_name, Inputs([Documents(corpus())]), encoder, dead_letters=DeadLetterList())
            await engine.refresh(index_name)
            counted = await contents(engine, index_name, spec)
            assert (counted.documents, counted.bytes) == (60, None)
            [source] = await Index.behind(engine, index_name)
            with pytest.raises(EngineError, match=r"410: .*Serverless"):
                await settled_writes(engine, source)
        with gateway_to(url, encoder) as gateway:
            told = call(gateway, "GET", "/_ttc/").json()["engine"]
            assert told == {"product": "elasticsearch", "version": "serverless", "supported": True}
            rescored = {"query": {"match": {"text": "cat"}}, "rescore": {"ttc": {"query_text": "a cat"}}}
            assert search(gateway, index_name, rescored).json()["ttc"]["applied"] is True
            knn = {"field": "ttc.vector", "query_text": "a cat", "k": 5, "ttc": {"method": "nnn"}}
            assert search(gateway, index_name, {"knn": knn}).json()["ttc"]["applied"] is True
            newest = dict.fromkeys(("accept", "content-type"), "application/vnd.elasticsearch+json;compatible-with=9")
            reply = call(gateway, "POST", f"/{index_name}/_search", rescored, newest)
            assert (reply.status, "x-ttc-compatible-with" in reply.headers) == (200, False)
