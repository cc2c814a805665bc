import json
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from es_ttc.cli.app import run
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect, connected
from es_ttc.engine.protocol import BulkItem, Engine
from es_ttc.index.attach import attach_beside
from es_ttc.index.ingest import IngestResult, Inputs, bulk, ingest
from es_ttc.index.ingest.bulk_errors import BulkErrorKind, refusal_of
from es_ttc.index.ingest.dead_letters import DeadLetterList
from es_ttc.index.ingest.readers import Documents
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.support.own_node import OwnNode

FULL = 20_000
"""Bytes beyond which no file of the node grows: below what one bulk adds to a translog."""
COUNT = 60


def documents() -> list[dict[str, Any]]:
    return [{"_id": str(n), "text": f"river and stone number {n} " + "word " * 20} for n in range(COUNT)]


@pytest.fixture
def node(own_node: OwnNode) -> OwnNode:
    return own_node


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, documents())))
    return tmp_path


@pytest.mark.engine
def test_the_logs_of_a_node_are_its_owners_alone(node: OwnNode) -> None:
    for log in (node.folder.log, node.folder.supervisor_log):
        assert f"{log.stat().st_mode & 0o777:o}" == "600"


def relieved_at_the_first_failure(
    engine: Engine, relieve: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Watch an engine's bulks, and end the trouble once one of its items has failed; return the statuses seen."""
    statuses: list[int] = []
    send = engine.bulk

    async def bulk(index: str, lines: Sequence[bytes]) -> list[BulkItem]:
        items = await send(index, lines)
        statuses.extend(item.status for item in items)
        if any(item.status == 500 for item in items):
            relieve()
        return items

    monkeypatch.setattr(engine, "bulk", bulk)
    return statuses


@pytest.mark.engine
async def test_documents_that_met_a_full_disk_are_sent_again(
    node: OwnNode, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(EngineSettings(engine=node.url)) as engine:
        try:
            await create_index(engine, "waited", IndexSpec(encoder.identity, max_tokens=64))
            node.limit_files(FULL)
            statuses = relieved_at_the_first_failure(engine, lambda: node.limit_files(None), monkeypatch)
            letters = DeadLetterList()
            outcome = await ingest(engine, "waited", Inputs([Documents(documents())]), encoder, dead_letters=letters)
            assert 500 in statuses
            assert (outcome.written, outcome.complete, letters.letters) == (COUNT, True, [])
            assert await engine.count("waited") == COUNT
        finally:
            node.limit_files(None)


@pytest.mark.engine
async def test_features_that_met_a_full_disk_are_written_again(
    node: OwnNode, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(EngineSettings(engine=node.url)) as engine:
        try:
            await engine.create_index("full-shop", {"mappings": {"properties": {"text": {"type": "text"}}}})
            for number in range(20):
                await engine.request(
                    "PUT", f"/full-shop/_doc/{number}", body={"text": f"river number {number} " + "word " * 20}
                )
            [source] = await Index.behind(engine, "full-shop")
            spec = IndexSpec(encoder.identity, text_fields=("text",), max_tokens=64)
            node.limit_files(FULL)
            statuses = relieved_at_the_first_failure(engine, lambda: node.limit_files(None), monkeypatch)
            filled = await attach_beside(engine, source, spec, encoder)
            assert 500 in statuses
            assert (filled.written, filled.failed) == (20, 0)
        finally:
            node.limit_files(None)


@pytest.mark.engine
def test_a_disk_that_stays_full_ends_the_run_and_rejects_nothing(
    node: OwnNode, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "RetryPolicy", partial(bulk.RetryPolicy, seconds=1))
    command = ["ingest", "failed", "docs.jsonl", "--engine", node.url, "--json"]
    assert run(["index", "create", "failed", "--engine", node.url]) == 0
    node.limit_files(FULL)
    try:
        assert run(command) == 1
    finally:
        node.limit_files(None)
    said = capsys.readouterr().err
    assert "i_o_exception" in said
    assert "run the same command with --resume to go on" in said
    assert not list(here.glob("*.rejected.jsonl"))
    assert run([*command, "--resume"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["rejected"], outcome["missing"]) == (0, 0)
    assert call(node.url, "GET", "/failed/_count")["count"] == COUNT


async def test_documents_that_are_gone_at_the_end_are_counted_as_missing(
    opensearch_url: str, index_name: str, encoder: Encoder
) -> None:
    engine = await connect(EngineSettings(engine=opensearch_url))
    gone: list[str] = []

    def somebody_deletes_one(outcome: IngestResult, _fraction: float | None) -> None:
        if outcome.written and not gone:
            gone.append(call(opensearch_url, "DELETE", f"/{index_name}/_doc/7")["result"])

    try:
        await create_index(engine, index_name, IndexSpec(encoder.identity, max_tokens=64))
        inputs = Inputs([Documents(documents())])
        outcome = await ingest(
            engine, index_name, inputs, encoder, dead_letters=DeadLetterList(), report=somebody_deletes_one
        )
    finally:
        await engine.close()
    assert gone == ["deleted"]
    assert (outcome.written, outcome.missing, outcome.missing_ids) == (COUNT, 1, ["7"])
    assert not outcome.complete


def test_resumed_ingest_counts_earlier_rejections(
    here: Path, opensearch_url: str, index_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"_id": "bad", "text": {"not": "a text"}}, *documents()]
    (here / "docs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = ["ingest", index_name, "docs.jsonl", "--engine", opensearch_url, "--json"]
    assert run(["index", "create", index_name, "--engine", opensearch_url]) == 0
    call(opensearch_url, "PUT", f"/{index_name}/_settings", {"index.blocks.write": True})
    assert run(command) == 1
    call(opensearch_url, "PUT", f"/{index_name}/_settings", {"index.blocks.write": None})
    capsys.readouterr()
    assert run([*command, "--resume"]) == 1
    captured = capsys.readouterr()
    outcome = json.loads(captured.out)
    assert (outcome["resumed_at"], outcome["rejected_before"], outcome["written"]) == (1, 1, COUNT)
    assert "1 document was rejected before this run was resumed" in captured.err


@pytest.mark.parametrize(
    ("status", "error", "refusal"),
    [
        (201, None, BulkErrorKind.NONE),
        (404, None, BulkErrorKind.NONE),
        (500, "i_o_exception: No space left on device", BulkErrorKind.TEMPORARY),
        (500, "node_closed_exception: node closed", BulkErrorKind.TEMPORARY),
        (503, "unavailable_shards_exception: [x][0] primary shard is not active", BulkErrorKind.TEMPORARY),
        (
            429,
            "cluster_block_exception: index [x] blocked by: [TOO_MANY_REQUESTS/12/disk full]",
            BulkErrorKind.TEMPORARY,
        ),
        (
            403,
            "cluster_block_exception: ... FORBIDDEN/12/index read-only / allow delete (api)",
            BulkErrorKind.TEMPORARY,
        ),
        (404, "shard_not_found_exception: no such shard", BulkErrorKind.TEMPORARY),
        (403, "cluster_block_exception: index [x] blocked by: [FORBIDDEN/8/index write (api)];", BulkErrorKind.ALL),
        (403, "security_exception: no permissions", BulkErrorKind.ALL),
        (404, "index_not_found_exception: no such index [x]", BulkErrorKind.ALL),
        (400, "index_closed_exception: closed", BulkErrorKind.ALL),
        (404, "document_missing_exception: [1]: document missing", BulkErrorKind.PERMANENT),
        (400, "mapper_parsing_exception: failed to parse", BulkErrorKind.PERMANENT),
        (409, "version_conflict_engine_exception: conflict", BulkErrorKind.PERMANENT),
        (500, "null_pointer_exception: null", BulkErrorKind.PERMANENT),
    ],
)
def test_refusals(status: int, error: str | None, refusal: BulkErrorKind) -> None:
    assert refusal_of(BulkItem(0, "1", status, error)) is refusal


def call(url: str, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
