"""An index judged from end to end: by commands, by the page's requests, by two judges at once and by a model."""

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from es_ttc.cli.app import run
from es_ttc.lab.judging import standing
from es_ttc.lab.judging.records import pool_id
from es_ttc.lab.judging.store import JUDGEMENTS_INDEX, SIGNALS_INDEX
from es_ttc.rescorers.tuned import Tuned
from es_ttc.serving.logs import configure_logs
from tests.judging.conftest import Judged
from tests.serving.client import Reply, call
from tests.support.llm import scripted_model

ON_ONE_ENGINE = True

pytestmark = pytest.mark.engine
Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")
    monkeypatch.setenv("ES_TTC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def command(judged: Judged, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command on the engine, and return its JSON."""

    def execute(*arguments: object) -> Any:
        configure_logs(logging.ERROR)  # as the program does
        capsys.readouterr()
        words = [str(one) for one in arguments]
        assert run([*words, "--engine", judged.engine, "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return execute


def ask(judged: Judged, method: str, rest: str = "", body: dict[str, Any] | None = None) -> Reply:
    return call(judged.gateway, method, f"/_ttc/judgements/{judged.index}{rest}", body)


def text_of(judged: Judged) -> str:
    return next(iter(judged.collection.queries.values()))


def documents(judged: Judged, query: str, judge: str) -> list[dict[str, Any]]:
    reply = ask(judged, "GET", f"/queries/{quote(query)}?judge={judge}")
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = reply.json()["documents"]
    return found


def judge_all(judged: Judged, judge: str, grade: Callable[[str, str], int]) -> None:
    """Give all grades, one request each, as fast as the gateway takes them."""
    for query in judged.collection.queries:
        for one in documents(judged, query, judge):
            given = [{"query": query, "document": one["id"], "grade": grade(query, one["id"])}]
            reply = ask(judged, "POST", body={"judge": judge, "judgements": given})
            assert reply.json() == {"judged": 1, "taken_back": 0}


def test_from_pools_to_weights(
    judged: Judged, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, index = tmp_path / "queries.jsonl", judged.index
    lines = (json.dumps({"_id": name, "text": text}) for name, text in judged.collection.queries.items())
    queries.write_text("\n".join(lines))
    pooled = command("judge", "pool", index, queries, "--depth", 3, "--methods", "blend,bm25")
    assert (pooled["queries"], pooled["signals"]) == (12, True)

    def truth(query: str, document: str) -> int:
        return 3 * judged.collection.qrels[query].get(document, 0)

    with ThreadPoolExecutor() as both:
        first = both.submit(judge_all, judged, "Ada", truth)
        second = both.submit(judge_all, judged, "Bo", lambda query, document: min(2, truth(query, document)))
        first.result()
        second.result()

    # Whoever comes back finds the same order, and what was graded.
    query = next(iter(judged.collection.queries))
    before = documents(judged, query, "Ada")
    assert [one["grade"] for one in before] == [truth(query, one["id"]) for one in before]
    assert [one["id"] for one in before] == [one["id"] for one in documents(judged, query, "Ada")]
    assert {one["id"] for one in before} == {one["id"] for one in documents(judged, query, "Cy")}
    assert all(set(one["source"]) == {"title", "text"} or "text" in one["source"] for one in before)
    assert not any("ttc" in one["source"] for one in before)

    status = command("judge", "status", index)
    assert (status["unjudged"], status["pooled"]) == (0, pooled["documents"])
    assert {name: one["judgements"] for name, one in status["judges"].items()} == dict.fromkeys(
        ("Ada", "Bo"), pooled["documents"]
    )
    [pair] = status["agreement"]["pairs"]
    assert pair["both"] == pooled["documents"]
    assert 0 < pair["kappa"] < 1
    assert ask(judged, "GET", "/standing").json()["methods"] == status["standing"]["methods"]

    # `evaluate` finds what the pools' runs say; the same searches give the same figures.
    found = command("evaluate", "--judgements", index, "--methods", "blend,bm25")["data"][index]
    assert (found["documents"], found["split"]) == (30, "judgements")
    for one in status["standing"]["methods"]:
        assert found["methods"][one["method"]]["ndcg@10"] == pytest.approx(one["ndcg@10"], abs=1e-6)

    # What is exported is a collection like any other, and comes back as it went.
    folder = tmp_path / "judged"
    command("judge", "export", index, "--format", "beir", "--out", folder, "--corpus", "--judge", "Ada")
    assert run(["evaluate", str(folder), "--methods", "bm25"]) == 0
    for form in ("beir", "trec", "workbench", "quepid"):
        path = folder if form == "beir" else tmp_path / form
        if form != "beir":
            command("judge", "export", index, "--format", form, "--out", path, "--judge", "Ada")
        imported = command("judge", "import", index, path, "--format", form, "--judge", f"from {form}")
        assert imported["judgements"] == pooled["documents"]
    again = command("judge", "status", index)["agreement"]["pairs"]
    assert {pair["kappa"] for pair in again if "Bo" not in pair["judges"]} == {1.0}

    some = tmp_path / "some.csv"
    some.write_text(f"{text_of(judged)},{before[0]['id']},3\n{text_of(judged)},gone,3\n{text_of(judged)},lost,3\n")
    imported = command("judge", "import", index, some, "--format", "quepid")
    assert (imported["judgements"], imported["unknown_documents"]) == (1, ["gone", "lost"])

    runs = tmp_path / "run"
    command("judge", "export", index, "--format", "trec-run", "--out", runs)
    runs.write_text(runs.read_text().replace(" bm25\n", " theirs\n"))
    assert command("judge", "import", index, runs, "--format", "trec-run")["queries"] == 12
    methods = command("judge", "status", index)["queries"][0]["methods"]
    assert methods == ["blend", "bm25", "theirs"]

    tuned, served = tmp_path / "tuned.json", tmp_path / "served.json"
    command("tune", "--judgements", index, "--method", "blend", "--folds", 2, "--out", tuned, "--force")
    assert Tuned.read(tuned).data == index
    reply = ask(judged, "GET", "/tuned")
    assert (reply.status, "with 30 or more, weights of blend" in reply.reason) == (400, True)
    monkeypatch.setattr(standing, "FEWEST_QUERIES", 5)
    served.write_bytes(ask(judged, "GET", "/tuned").body)
    assert Tuned.read(served).method == "blend"
    assert ask(judged, "GET", "/standing").json()["tuned"]["params"] == Tuned.read(served).params


def test_wrong_requests_are_answered_in_one_sentence(
    judged: Judged, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    texts = ["who collects stamps", "who collects coins"]
    pool: dict[str, Any] = {
        "queries": [{"text": text, "runs": [["d1", "d2"], ["d2", "d3"]]} for text in texts],
        "methods": [{"method": "blend"}, {"method": "bm25", "params": {}}],
        "depth": 1,
    }
    made = ask(judged, "POST", "/pool", pool)
    assert made.status == 200, made.body
    query = made.json()["queries"][0]
    assert query["pooled"] == 2

    def graded(**changes: Any) -> dict[str, Any]:
        one = {"query": query["id"], "document": "d1", "grade": 1}
        return {"judge": "Ada", "judgements": [one | changes]}

    assert ask(judged, "POST", body=graded()).status == 200
    assert ask(judged, "POST", body=graded(grade=None)).json() == {"judged": 0, "taken_back": 1}
    assert [one["grade"] for one in documents(judged, query["id"], "Ada")] == [None, None]
    first = pool["queries"][0]
    for method, rest, body, status, reason in (
        ("POST", "", graded(grade=4), 400, "[grade] of document [d1] is 4: give 0, 1, 2 or 3"),
        ("POST", "", graded(grade="3"), 400, "is wrong, got"),
        ("POST", "", graded(query="none"), 404, "has no pool for a query [none]"),
        ("POST", "", graded() | {"judge": " "}, 400, "[judge] must be a name"),
        ("GET", "/queries/none?judge=Ada", None, 404, "has no pool"),
        ("GET", f"/queries/{query['id']}", None, 400, "[judge] must be a name"),
        ("POST", "/pool", pool | {"depht": 2}, 400, "did you mean [depth]?"),
        ("POST", "/pool", pool | {"queries": [first | {"runs": []}]}, 400, "has 0 runs: give one a method, 2"),
        ("POST", "/pool", pool | {"queries": [first | {"id": query["id"], "text": "other"}]}, 400, "give the query"),
        ("POST", "/pool", pool | {"queries": [first] * 51}, 400, "[pool.queries] is wrong"),
    ):
        reply = ask(judged, method, rest, body)
        assert (reply.status, reason in reply.reason) == (status, True), reply.body
    for rest in ("", "/standing", "/queries/q1?judge=Ada"):
        reply = call(judged.gateway, "GET", f"/_ttc/judgements/not-there{rest}")
        assert (reply.status, reply.json()["error"]["type"]) == (404, "index_not_found_exception")

    (tmp_path / "grades").write_text("unheard 0 d1 2\n")
    (tmp_path / "gone").write_text("query,docid,rating\nstamps,gone,2\n")
    for arguments, message in (
        (["judge", "pool", "not-there", "--query", "x"], "there is no index [not-there]"),
        (["judge", "status", "not-there"], "there is no index [not-there]"),
        (["judge", "pool", judged.index], "name queries"),
        (
            ["judge", "pool", judged.index, "warm shoes"],
            "no file [warm shoes] of queries; a query itself is given with --query",
        ),
        (["judge", "pool", judged.index, "--query", "x", "--methods", "blond"], "did you mean [blend]?"),
        (["judge", "import", judged.index, str(tmp_path / "grades"), "--format", "trec"], "[unheard] is not known"),
        (
            ["judge", "import", judged.index, str(tmp_path / "gone"), "--format", "quepid"],
            f"index [{judged.index}] has none of the 1 judged documents, such as [gone]",
        ),
        (["judge", "export", judged.index, "--format", "trec", "--out", "x", "--judge", "Zed"], "no judge [Zed]"),
        (["evaluate", "--judgements", "not-there"], "there is no index [not-there]"),
        (["tune", "--method", "blend"], "name a folder DATA, or an index with judgements"),
        (["tune", "--judgements", judged.index, "--method", "nnn"], "are for --method blend"),
    ):
        engine = ["--engine", judged.engine] if "tune" not in arguments else []
        assert run([*arguments, *engine]) != 0
        assert message in capsys.readouterr().err


def test_records_of_others_are_left_out_and_counted(judged: Judged, capsys: pytest.CaptureFixture[str]) -> None:
    text = "what is left of a pool"
    pool = {"queries": [{"id": "left", "text": text, "runs": [["d1"]]}], "methods": [{"method": "bm25"}]}
    assert ask(judged, "POST", "/pool", pool).status == 200
    of_pool: dict[str, Any] = {"text": "a", "depth": 1, "methods": [{"method": "bm25", "params": {}}], "runs": [["d1"]]}
    of_judgement: dict[str, Any] = {"document": "d1", "judge": "Ada", "source": "person", "grade": 1}
    wrong: list[dict[str, Any]] = [
        *({"kind": "pool", "pool": of_pool | {"text": None}, "query": query} for query in ("left", "other")),
        {"kind": "pool", "pool": of_pool | {"runs": "zz"}},
        {"kind": "pool", "pool": of_pool | {"depth": "x"}},
        {"kind": "pool", "pool": of_pool | {"methods": [{"method": "bm25", "params": 3}]}},
        {"kind": "pool"},
        *({"kind": "judgement"} | of_judgement | {key: None} for key in of_judgement),
        {"kind": "judgement"} | of_judgement | {"grade": 9},
        {"kind": "signals", "signals": {"names": ["lexical"]}},
    ]
    names = [pool_id(judged.index, "left"), *(f"{judged.index}-wrong-{place}" for place in range(1, len(wrong)))]
    indices = [SIGNALS_INDEX if one["kind"] == "signals" else JUDGEMENTS_INDEX for one in wrong]
    try:
        for index, name, one in zip(indices, names, wrong, strict=True):
            record = {"index": judged.index, "key": name, "query": "q"} | one
            assert call(judged.engine, "PUT", f"/{index}/_doc/{name}?refresh=true", record).status < 300
        assert ask(judged, "GET", "").json()["unreadable"] == sorted(names[:-1])
        assert ask(judged, "GET", "/standing").json()["unreadable"] == sorted(names)
        reply = ask(judged, "GET", "/queries/left?judge=Ada")
        assert (reply.status, "make it again" in reply.reason) == (400, True)
        assert run(["judge", "status", judged.index, "--engine", judged.engine]) == 0
        assert f"note: {len(names)} records of [{JUDGEMENTS_INDEX}]" in capsys.readouterr().err
        assert ask(judged, "POST", "/pool", pool).status == 200
        assert names[0] not in ask(judged, "GET", "").json()["unreadable"]
    finally:
        for index, name in zip(indices, names, strict=True):
            call(judged.engine, "DELETE", f"/{index}/_doc/{name}?refresh=true")


def test_a_model_judges_and_counts_only_where_asked(
    judged: Judged, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{judged.collection.queries['q1']} nowadays"
    command("judge", "pool", judged.index, "--query", text, "--methods", "bm25", "--depth", 4)

    async def with_model() -> Any:
        async with scripted_model(lambda body: "no idea" if "nowadays" not in str(body) else '{"grade": 2}') as model:
            monkeypatch.setenv("ES_TTC_LLM_URL", model.url)
            monkeypatch.setenv("ES_TTC_LLM_MODEL", "tester")
            return await asyncio.to_thread(command, "judge", "pool", judged.index, "--by", "llm")

    found = asyncio.run(with_model())
    assert found["judge"] == "llm:tester"
    assert found["graded"] == 4

    def of_query(*flags: str) -> dict[str, Any]:
        queries = command("judge", "status", judged.index, *flags)["queries"]
        return next(one for one in queries if one["text"] == text)

    assert of_query()["judged"] == 0
    assert of_query("--with-llm")["judged"] == 4
    assert of_query()["by"] == {"llm:tester": 4}
