"""The vendors' clients do, get and raise the same through the gateway as directly, from bulk helpers to error classes.

Each scenario is run against both addresses; what every step gave, or the class and status of what it raised, must be
the same. Nothing in it carries our section.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import elasticsearch
import elasticsearch.helpers
import opensearchpy
import opensearchpy.helpers
import pytest

from tests.serving.client import call
from tests.serving.conftest import SearchStack

VARIABLE = frozenset(
    {"took", "total_time_in_millis", "time_in_millis", "_scroll_id", "scroll_id", "task", "throttled_millis", "uuid"}
)
"""What differs from run to run."""


def comparable(value: Any, index: str) -> Any:
    """Return an answer without what differs from run to run; the index's name is another one each time."""
    value = getattr(value, "body", value)
    if isinstance(value, dict):
        return {
            key.replace(index, "INDEX"): comparable(one, index) for key, one in value.items() if key not in VARIABLE
        }
    if isinstance(value, (list, tuple)):
        return [comparable(one, index) for one in value]
    return value.replace(index, "INDEX") if isinstance(value, str) else value


class Transcript(list[tuple[str, Any]]):
    """What each step of a scenario gave."""

    def __init__(self, index: str) -> None:
        super().__init__()
        self._index = index

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            value = call()
        except (elasticsearch.ApiError, elasticsearch.TransportError) as error:
            self.append((name, (type(error).__name__, getattr(error, "status_code", None))))
        except opensearchpy.OpenSearchException as error:
            self.append((name, (type(error).__name__, getattr(error, "status_code", None))))
        except (elasticsearch.helpers.BulkIndexError, elasticsearch.helpers.ScanError) as error:
            self.append((name, (type(error).__name__, comparable(list(error.args), self._index))))
        else:
            self.append((name, comparable(value, self._index)))
            return value
        return None

    async def later(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            value = await call()
        except (elasticsearch.ApiError, elasticsearch.TransportError, opensearchpy.OpenSearchException) as error:
            self.append((name, (type(error).__name__, getattr(error, "status_code", None))))
            return None
        self.append((name, comparable(value, self._index)))
        return value


def actions(index: str, count: int = 120) -> list[dict[str, Any]]:
    """Documents for a bulk helper, one of which the mapping refuses."""
    return [
        {
            "_index": index,
            "_id": str(number),
            "number": number if number != 77 else "no number",
            "text": f"cat {number}",
        }
        for number in range(count)
    ]


MAPPINGS = {"properties": {"number": {"type": "integer"}, "text": {"type": "text"}}}
STAMP = {"processors": [{"set": {"field": "a", "value": 1}}]}
LOOP = "double x = 0; for (int i = 0; i < 900000; i++) { x += Math.sqrt(i); } return 1 + x * 0;"
SLOW = {"script_score": {"query": {"match_all": {}}, "script": {"source": LOOP}}}
QUERY = {"match": {"text": "cat"}}


def documents_in_bulk(done: Transcript, client: Any, helpers: Any, index: str) -> None:
    """The steps that both libraries write alike: bulk helpers, scans and copies of an index."""
    step = done.step
    step("create again", lambda: client.indices.create(index=index))
    step("bulk", lambda: helpers.bulk(client, actions(index), chunk_size=50, raise_on_error=False, refresh=True))
    step("bulk raises", lambda: helpers.bulk(client, actions(index), stats_only=False))
    step(
        "streaming",
        lambda: [
            (fine, item["index"]["_id"], item["index"]["status"])
            for fine, item in helpers.streaming_bulk(client, actions(index), chunk_size=7, raise_on_error=False)
        ],
    )
    step("parallel", lambda: sum(fine for fine, _ in helpers.parallel_bulk(client, actions(index, 50))))
    step("refresh", lambda: client.indices.refresh(index=index))
    step("scan", lambda: sorted(hit["_id"] for hit in helpers.scan(client, index=index, size=13)))
    step("reindex helper", lambda: helpers.reindex(client, index, f"{index}-copy", chunk_size=40))
    step("missing index", lambda: client.search(index=f"{index}-absent"))
    step("missing document", lambda: client.get(index=index, id="absent"))
    step("exists", lambda: (bool(client.exists(index=index, id="1")), bool(client.exists(index=index, id="x"))))


def names_and_figures(done: Transcript, client: Any, index: str) -> None:
    """What both libraries write alike of aliases, mappings, the cat interface and the cluster, and the end."""
    step, indices = done.step, client.indices
    step("alias", lambda: indices.put_alias(index=index, name=f"{index}-alias"))
    step("aliases", lambda: indices.get_alias(index=index))
    step("mapping", lambda: indices.get_mapping(index=index))
    step("cat as text", lambda: str(client.cat.indices(index=index, h="index,health,docs.count")))
    step("cat as json", lambda: client.cat.count(index=index, format="json", h="count"))
    step("health", lambda: client.cluster.health(index=index, wait_for_status="green")["status"])
    step("delete", lambda: indices.delete(index=f"{index},{index}-2,{index}-copy"))
    step("delete again", lambda: indices.delete(index=index))


def with_elasticsearch_py(url: str, index: str) -> Transcript:
    done = Transcript(index)
    with elasticsearch.Elasticsearch(url, http_compress=True, request_timeout=30) as client:
        step, indices = done.step, client.indices
        step("create", lambda: indices.create(index=index, mappings=MAPPINGS, settings={"number_of_replicas": 0}))
        step("ignored", lambda: client.options(ignore_status=400).indices.create(index=index)["status"])
        documents_in_bulk(done, client, elasticsearch.helpers, index)
        step("reindex", lambda: client.reindex(source={"index": index}, dest={"index": f"{index}-2"}, refresh=True))
        step("update by query", lambda: client.update_by_query(index=f"{index}-2", query=QUERY, refresh=True))
        step("delete by query", lambda: client.delete_by_query(index=f"{index}-2", query={"term": {"number": 3}}))
        step(
            "search",
            lambda: client.search(index=index, query=QUERY, size=3, sort=["number"], source_includes=["number"]),
        )
        step("bad query", lambda: client.search(index=index, query={"no_such": {}}))
        step("conflict", lambda: client.create(index=index, id="1", document={}))
        step("old version", lambda: client.index(index=index, id="1", document={}, if_seq_no=10**6, if_primary_term=1))
        step("unicode id", lambda: client.index(index=index, id="中 文/+?#", document={"number": 1}, refresh=True))
        step("unicode id again", lambda: client.get(index=index, id="中 文/+?#")["_source"])
        step("pipeline", lambda: client.ingest.put_pipeline(id=index, processors=STAMP["processors"]))
        step("through it", lambda: client.index(index=index, id="p", document={}, pipeline=index, refresh=True))
        step("stamped", lambda: client.get(index=index, id="p")["_source"])
        step("pipeline gone", lambda: client.ingest.delete_pipeline(id=index))
        step("msearch", lambda: client.msearch(index=index, searches=[{}, {"query": QUERY, "size": 1}, {}, {"x": 1}]))
        step("mget", lambda: client.mget(index=index, ids=["1", "absent"]))
        step("timeout", lambda: client.options(request_timeout=0.02, max_retries=0).search(index=index, query=SLOW))
        names_and_figures(done, client, index)
    return done


def with_opensearch_py(url: str, index: str) -> Transcript:
    done = Transcript(index)
    client = opensearchpy.OpenSearch(url, http_compress=True, timeout=30)
    step, indices = done.step, client.indices
    made = {"mappings": MAPPINGS, "settings": {"number_of_replicas": 0}}
    copied = {"source": {"index": index}, "dest": {"index": f"{index}-2"}}
    step("create", lambda: indices.create(index=index, body=made))
    step("ignored", lambda: indices.create(index=index, ignore=400)["status"])
    documents_in_bulk(done, client, opensearchpy.helpers, index)
    step("reindex", lambda: client.reindex(body=copied, refresh=True))
    step("update by query", lambda: client.update_by_query(index=f"{index}-2", body={"query": QUERY}, refresh=True))
    step("search", lambda: client.search(body={"query": QUERY, "size": 3, "sort": ["number"]}, index=index))
    step("bad query", lambda: client.search(body={"query": {"no_such": {}}}, index=index))
    step("conflict", lambda: client.create(index=index, id="1", body={}))
    step("unicode id", lambda: client.index(index=index, body={"number": 1}, id="中 文/+?#", refresh=True))
    step("unicode id again", lambda: client.get(index=index, id="中 文/+?#")["_source"])
    step("pipeline", lambda: client.ingest.put_pipeline(id=index, body=STAMP))
    step("through it", lambda: client.index(index=index, body={}, id="p", pipeline=index, refresh=True))
    step("stamped", lambda: client.get(index=index, id="p")["_source"])
    step("pipeline gone", lambda: client.ingest.delete_pipeline(id=index))
    step("msearch", lambda: client.msearch(body=[{}, {"query": QUERY, "size": 1}, {}, {"x": 1}], index=index))
    step("mget", lambda: client.mget(body={"ids": ["1", "absent"]}, index=index))
    step("timeout", lambda: client.search(index=index, body={"query": SLOW}, request_timeout=0.02))
    names_and_figures(done, client, index)
    client.close()
    return done


async def with_async_client(product: str, url: str, index: str) -> Transcript:
    done, vendors = Transcript(index), product == "elasticsearch"
    kind: Any = elasticsearch.AsyncElasticsearch if vendors else opensearchpy.AsyncOpenSearch
    helpers: Any = elasticsearch.helpers if vendors else opensearchpy.helpers
    mappings: dict[str, Any] = {"mappings": MAPPINGS} if vendors else {"body": {"mappings": MAPPINGS}}
    async with kind(url, http_compress=True) as client:
        bulk = {"chunk_size": 30, "raise_on_error": False, "refresh": True}

        async def scanned() -> list[str]:
            return sorted([hit["_id"] async for hit in helpers.async_scan(client, index=index, size=13)])

        await done.later("create", lambda: client.indices.create(index=index, **mappings))
        await done.later("create again", lambda: client.indices.create(index=index))
        await done.later("bulk", lambda: helpers.async_bulk(client, actions(index), **bulk))
        await done.later("scan", scanned)
        await done.later("missing", lambda: client.get(index=index, id="absent"))
        await done.later("delete", lambda: client.indices.delete(index=index))
    return done


def assert_same(direct: Transcript, through: Transcript, steps: int) -> None:
    assert len(direct) >= steps
    for one, other in zip(direct, through, strict=True):
        assert one == other


def skip_if_older(stack: SearchStack) -> None:
    """Skip where the engine is older than its client and refuses it: only through the gateway do they work together."""
    if stack.product == "elasticsearch":
        number = call(stack.engine, "GET", "/").json()["version"]["number"]
        if int(number.partition(".")[0]) < elasticsearch.VERSION[0]:
            pytest.skip(f"Elasticsearch {number} refuses elasticsearch-py {elasticsearch.VERSION[0]}")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_client_does_the_same_through_the_gateway(stack: SearchStack, index_name: str) -> None:
    skip_if_older(stack)
    scenario = with_elasticsearch_py if stack.product == "elasticsearch" else with_opensearch_py
    direct, through = scenario(stack.engine, f"{index_name}-a"), scenario(stack.gateway, f"{index_name}-b")
    assert_same(direct, through, 34)
    raised = {outcome[0] for _, outcome in direct if isinstance(outcome, tuple)}
    assert raised >= {"NotFoundError", "ConflictError", "BulkIndexError", "ConnectionTimeout"}


async def test_an_async_client_does_the_same_through_the_gateway(stack: SearchStack, index_name: str) -> None:
    skip_if_older(stack)
    direct = await with_async_client(stack.product, stack.engine, f"{index_name}-a")
    through = await with_async_client(stack.product, stack.gateway, f"{index_name}-b")
    assert_same(direct, through, 6)
