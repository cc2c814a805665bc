"""Learning from a query log: what a log says, what is learned, what is written."""

import asyncio
import errno
import gzip
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import pytest

from es_ttc.cli.app import run
from es_ttc.cli.learn import _show
from es_ttc.encoders.base import Encoder, Role
from es_ttc.encoders.heads import Head, Linear
from es_ttc.encoders.query_adapters import QueryAdapter, QueryAdapters
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import ConfigurationError, EncoderMismatch
from es_ttc.index.mappings.queries import matching
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.methods import resolve_one
from es_ttc.lab.evaluation.plan import EvaluationPlan, open_searcher
from es_ttc.lab.evaluation.rankings import silent
from es_ttc.lab.learning import session
from es_ttc.lab.learning.evaluation import cross_fitted_pools, evaluation_of
from es_ttc.lab.learning.query_log import MAX_LENGTH, read_log
from es_ttc.lab.learning.teachers import TEACHERS, TeacherTarget, blend_scores, targets
from es_ttc.lab.learning.training import Adapters, Lists, bounded, fit_adapters
from es_ttc.lab.ranking.index_pools import IndexSource, collect_from_index
from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.lab.training.loop import TrainingProgress
from es_ttc.lab.training.options import LoopOptions
from es_ttc.rescorers.blend.rescorer import RERANKER_WEIGHT
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust
from es_ttc.serving.server import running_gateway
from es_ttc.serving.trial import team_draft
from es_ttc.settings import EngineSettings, GatewaySettings
from es_ttc.vectors.codecs import DEFAULT_CODEC
from tests.attach.conftest import put, remove_traces, wait_for
from tests.serving.client import call, search
from tests.serving.relay import relay
from tests.training.conftest import ASKED, NAME, TOOLS


def ubi_event(action: str, document: str, **more: object) -> dict[str, object]:
    return {"query_id": "q1", "action_name": action, "event_attributes": {"object": {"object_id": document}, **more}}


def lines_of(*records: object) -> str:
    return "\n".join(map(json.dumps, records))


DSL = json.dumps({"query": {"match": {"name": {"query": "red shoes", "boost": 1.0}}}, "size": 10})
# As the plugin writes a search; its event may come before it.
UBI_QUERY = {"query_id": "q1", "user_query": "red  shoes", "query": DSL, "query_response_hit_ids": ["shoe"]}
UBI = lines_of(
    ubi_event("click", "shoe", position={"ordinal": 3}),
    UBI_QUERY | {"query": DSL[:-1] + " " * MAX_LENGTH + "}"},
    ubi_event("view", "boot"),
    ubi_event("click", "boot") | {"query_id": "unknown"},
    {"query_id": "q2", "user_query": None, "query": DSL},
)
# As UBI's generator of data writes them for `_bulk`: positions from 0.
GENERATED = lines_of(
    {"index": {"_index": "ubi_queries", "_id": "1"}},
    {"query_id": "q1", "user_query": "red shoes", "query_attributes": {}},
    *(
        ubi_event("impression", f"{place}", position={"ordinal": place}) | {"user_query": "red shoes"}
        for place in (0, 1)
    ),
    ubi_event("click", "1", position={"ordinal": 1}) | {"user_query": "red shoes"},
    ubi_event("click", "2", rank=2),
)
OBJECT, POSITION = "event_attributes.object", "event_attributes.position.ordinal"
EVENTS_CSV = (
    "object_id,position,action_name,query_id,user_query\nshoe,0,impression,q1,red\nboot,1,click,q1,red\n"
    "shoe,0,impression,,blue\nshoe,0,impression,q2,red\n"
)


@pytest.mark.parametrize(
    ("name", "content", "counts", "clicks"),
    [
        ("plain.log", "red shoes\n\nblue  hat\nred shoes\n", {"red shoes": 2, "blue hat": 1}, {}),
        ("rows.csv", "time,query\n1,red shoes\n2,\n3,タイヤ\n", {"red shoes": 1, "タイヤ": 1}, {}),
        ("a.jsonl", '\ufeff{"q": "red"}\n{"text": "blue", "clicked": 7}\n', {"red": 1, "blue": 1}, {"blue": {"7": 1}}),
        ("a.csv", "q;clicked;position\nred;;0\nred;7;3\nblue;;\n", {"red": 2, "blue": 1}, {"red": {"7": 3}}),
        ("a.tsv", 'id\tquery\r\n1\tred, blue\r\n2\t"red\r\n3\that\r\n', {"red, blue": 1, '"red': 1, "hat": 1}, {}),
        ("a.log", '{size} shoes\n{"q": "red"}\n[a] b\n', {"{size} shoes": 1, "red": 1, "[a] b": 1}, {}),
        ("b.log", '[a] b\n{"q": "red"}\n', {"[a] b": 1, "red": 1}, {}),
        ("a.json", '[\n{"q": "red",\n"clicked": 7}, "blue"]', {"red": 1, "blue": 1}, {"red": {"7": 1}}),
        ("part.jsonl", '{"q": 4711}\n{"q": 0}\n{"q": true, "text": "red"}\n', {"4711": 1, "0": 1, "red": 1}, {}),
        ("ubi.jsonl.gz", UBI, {"red shoes": 1}, {"red shoes": {"shoe": 3}}),
        ("bulk.ndjson", GENERATED, {"red shoes": 1}, {"red shoes": {"1": 2, "2": 3}}),
        ("ubi_events.csv", EVENTS_CSV, {"red": 2, "blue": 0}, {"red": {"boot": 2}}),
        ("hits.jsonl", lines_of({"_id": "1", "_source": UBI_QUERY}), {"red shoes": 1}, {}),
        ("flat.csv", f"q,{OBJECT}.object_id,{POSITION}\nred,7,4\n", {"red": 1}, {"red": {"7": 4}}),
    ],
)  # fmt: skip
def test_a_log_is_distinct_queries_and_their_clicks(
    name: str, content: str, counts: dict[str, int], clicks: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = read_log(tmp_path / name)
    assert (found.counts, found.clicks) == (counts, clicks)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.log", b"\n\n", "has no query: it is empty"),
        ("a.log", b"x" * 1001, "each of its 1 lines has .* more than 1,000 characters"),
        ("a.csv", b"id|query\n1|red\n", r"its first record has \[id\|query\]; name the field of queries \[query\]"),
        ("a.jsonl", b'a\n{"q": \n', "line 2"),
        ("a.json", b'[{"q": 1},', "is no JSON array of up to"),
        ("a.log", b"\xff", "as UTF-8"),
        ("a.log.gz", gzip.compress(b"red", mtime=0)[:-9], "cannot be read"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        read_log(tmp_path / name)


def made_pools(*, queries: int = 120, documents: int = 40, dims: int = 16, words_know: float = 0.8) -> Pools:
    """Pools in which a query is a fixed rotation of its relevant document, which words find and vectors do not."""
    random = np.random.default_rng(3)
    corpus = random.standard_normal((documents, dims)).astype(np.float32)
    corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
    rotation = np.linalg.qr(random.standard_normal((dims, dims)))[0].astype(np.float32)
    pools = []
    for number in range(queries):
        relevant = number % documents
        vector = corpus[relevant] @ rotation + random.standard_normal(dims).astype(np.float32) / 20
        vector /= np.linalg.norm(vector)
        grades = (np.arange(documents) == relevant).astype(np.int64)
        words = words_know * grades + random.random(documents)
        constant = np.zeros(documents)
        scores = np.stack([words, corpus @ vector, constant, constant], axis=1).astype(np.float32)
        names = tuple(map(str, range(documents)))
        pools.append(
            Pool(str(number), names, scores, Trust(1.0, 1.0), grades, grades[:0], grades[grades > 0],
                 query_vector=vector, vectors=[*corpus])
        )  # fmt: skip
    return Pools("made", "log", "any", DEFAULT_SIGNALS, tuple(pools), {})


def test_a_query_takes_the_first_teacher_that_says_something() -> None:
    pools = made_pools(queries=3, documents=4)
    other = unjudged(pools.pools[1])
    given = replace(pools, pools=(pools.pools[0], other, replace(other, query="2")))
    clicks = {"0": {"3": 9.0}, "1": {"3": 6.0, "2": 2.0, "elsewhere": 5.0}, "2": {"3": 1.0}}
    found = targets(given, clicks, {"1": {"0": 9.0}})
    assert [one.teacher for one in found] == ["judgements", "clicks", "blend"]
    scored = targets(given, clicks, {"2": {"3": 1.0, "1": 0.0}})[2]
    assert scored.teacher == "reranker"
    np.testing.assert_allclose(
        np.log(scored.shares / found[2].shares)[[1, 3]] @ [-1, 1], 2 * RERANKER_WEIGHT, rtol=1e-4
    )
    assert found[0].shares.tolist() == [1, 0, 0, 0]
    assert found[1].shares.tolist() == [0, 0, 0.25, 0.75]
    assert found[2].shares.sum() == pytest.approx(1)
    assert found[2].shares.argmax() == blend_scores(given)[2].argmax()
    assert [one.teacher for one in targets(given, clicks, allowed=("judgements",))] == ["judgements", None, None]


def unjudged(pool: Pool) -> Pool:
    return replace(pool, grades=pool.grades * 0)


@pytest.mark.parametrize("judged", [True, False])
def test_a_learned_adapter_gains_on_held_out_queries(judged: bool) -> None:
    pools = made_pools(words_know=0.8 if judged else 4)
    loop = LoopOptions(epochs=20, learning_rate=5e-3, patience=20, threads=1)
    given = pools if judged else replace(pools, pools=tuple(unjudged(pool) for pool in pools.pools))

    def fit(some: Pools, said: Sequence[TeacherTarget]) -> Callable[[Pools], Pools]:
        heads = fit_adapters(some, said, loop=loop).heads
        assert not heads["document"].layers

        def scored(pool: Pool) -> Pool:
            assert pool.query_vector is not None
            cosines = np.array(pool.vectors) @ heads["query"](pool.query_vector[None])[0]
            return replace(pool, scores=np.column_stack([pool.scores[:, 0], cosines, pool.scores[:, 2:]]))

        return lambda others: replace(others, pools=tuple(map(scored, others.pools)))

    after = cross_fitted_pools(given, targets(given, {}), fit, seed=1)
    found = evaluation_of(given, after, least=20, seed=1)
    assert found.judged == (len(pools) if judged else 0)
    assert found.clear is judged
    clicks = {pool.query: {str(int(pool.query) % 40): 2.0} for pool in pools.pools}
    by_clicks = evaluation_of(given, after, clicks, least=20, seed=1)
    assert (by_clicks.clicked is None) is judged
    assert by_clicks.clear is judged  # words alone find what is clicked: nothing is gained
    assert found.blend is None or found.blend.delta > 0.05
    assert (found.dense is None) is not judged
    assert not evaluation_of(given, given, least=20, seed=1).clear


def test_every_fold_learns_something_where_few_documents_are_taught() -> None:
    pools = made_pools(queries=60)
    said = targets(pools, {str(number): {"7": 9.0} for number in range(20)}, allowed=("clicks",))
    taught: list[int] = []

    def fit(_some: Pools, of_others: Sequence[TeacherTarget]) -> Callable[[Pools], Pools]:
        taught.append(sum(one.teacher is not None for one in of_others))
        return lambda others: others

    cross_fitted_pools(pools, said, fit, seed=1)
    assert min(taught) >= 10


def test_clicks_that_teach_nothing_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    pools = made_pools(queries=25)
    pools = replace(pools, pools=tuple(unjudged(pool) for pool in pools.pools))
    lesson = session.TrainingData(
        Collection("shop", "log", (), {}, {}), {"0": {"elsewhere": 9.0}}, TEACHERS, None, 10, 0
    )
    adapters = Adapters({}, cast("TrainingProgress", None), {"blend": 25})
    _show("shop", session.LearnedAdapter(adapters, evaluation_of(pools, pools, least=20, seed=1), pools, lesson))
    assert "1 queries have clicks, and none teaches: a click must name the `_id`" in capsys.readouterr().err


async def _with_index(url: str, name: str, work: Callable[[Engine, str], Awaitable[None]]) -> None:
    async with connected(EngineSettings(engine=url)) as engine:
        await work(engine, name)


async def _make(engine: Engine, name: str) -> None:
    mapping = {"dynamic": False, "properties": {"text": {"type": "text", "analyzer": "english"}}}
    await engine.create_index(name, {"settings": {"number_of_replicas": 0}, "mappings": mapping})
    await put(engine, name, {tool: {"text": f"{tool}: {text}"} for tool, text in TOOLS.items()})


def require_served(engine: str, index: str, folder: Path, base: Encoder) -> None:
    """Search through a gateway with an adapter: cosines, blend's order and its scores are those in memory."""
    adapted = QueryAdapter.read(folder, folder, "adapter").over(base)
    documents = base.encode([f"{tool}: {text}" for tool, text in TOOLS.items()], tokens=False).pooled
    settings = GatewaySettings(engine=engine, port=0, scoring_timeout_ms=20_000, query_adapters={index: folder})
    queries = Collection(index, "asked", (), {text: text for text in ASKED}, {text: {} for text in ASKED})
    source, keep = IndexSource(index, settings, lambda _: base), folder.with_name("kept")
    pools = collect_from_index(queries, source)
    for _ in range(2):  # written, then read
        for pool, kept in zip(pools.pools, collect_from_index(queries, source, keep=keep).pools, strict=True):
            assert (kept.query, kept.documents, kept.trust) == (pool.query, pool.documents, pool.trust)
            np.testing.assert_array_equal(kept.scores, pool.scores)
            np.testing.assert_array_equal(np.array(kept.vectors), np.array(pool.vectors))
    tools = tuple(Document(tool, "", f"{tool}: {text}") for tool, text in TOOLS.items())
    plan = EvaluationPlan((blend := resolve_one("blend"),), first_pass="bm25", codec=DEFAULT_CODEC)
    with open_searcher(plan, replace(queries, documents=tools), adapted, silent) as (searcher, _, _):
        memory = searcher.rank(blend)
    with running_gateway(settings, load=lambda _name, _folder: base) as gateway:
        for text, pool, scores in zip(ASKED, pools.pools, blend_scores(pools), strict=True):
            knn = {"field": "ttc.vector", "query_text": text, "k": len(TOOLS)}
            near = search(gateway, index, {"knn": knn, "size": len(TOOLS)})
            cosines = documents @ adapted.encode([text], role="query", tokens=False).pooled[0]
            expected = dict(zip(TOOLS, ((1 + cosines) / 2).tolist(), strict=True))
            assert dict(zip(near.ids, near.scores, strict=True)) == pytest.approx(expected, abs=1e-3)
            assert near.json()["ttc"]["encoder"] == adapted.identity.key
            blended = search(gateway, index, {"query": matching(text, ["text"]), "rescore": {"ttc": {}}})
            assert blended.ids == [pool.documents[place] for place in np.argsort(-scores, kind="stable")]
            assert blended.ids == memory.rankings[text]
            np.testing.assert_allclose(blended.scores, memory.scores[text], atol=1e-4)
            assert blended.json()["ttc"]["encoder"] == adapted.identity.key
        several = search(gateway, f"{index},{index}-none*", {"query": matching(text, ["text"]), "rescore": {"ttc": {}}})
        assert several.json()["ttc"]["encoder"] == base.identity.key


def require_tried(
    engine: str, index: str, folder: Path, base: Encoder, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Search through a gateway with an adapter on trial: pages are one draft of both rankings, as the file says."""
    settings = GatewaySettings(
        engine=engine, port=0, scoring_timeout_ms=20_000, query_adapters={index: folder}, trial_log=file, trial_share=1
    )
    with running_gateway(settings, load=lambda _name, _folder: base) as gateway:
        for number, text in enumerate(ASKED, 1):
            body = {"query": matching(text, ["text"]), "rescore": {"ttc": {}}}
            first, second = (search(gateway, index, {**body, "from": start, "size": 4}) for start in (0, 4))
            assert sorted((*first.ids, *second.ids)) == sorted(TOOLS)
            assert [*first.scores, *second.scores] == sorted((*first.scores, *second.scores), reverse=True)
            wait_for(lambda: file.read_text().count("\n") == 2 * number)  # noqa: B023
            lines = [json.loads(line) for line in file.read_text().splitlines()[-2:]]
            assert [[name for name, _ in line["hits"]] for line in lines] == [first.ids, second.ids]
            assert {line["query"] for line in lines} == {text}
            assert lines[0]["adapter"] == first.json()["ttc"]["trial"]
            elsewhere = search(gateway, index, {**body, "sort": ["_score"]})
            assert elsewhere.json()["ttc"]["encoder"] == base.identity.key
            assert first.headers.keys() == elsewhere.headers.keys()
            assert first.headers["content-type"] == elsewhere.headers["content-type"]
        packed = call(
            gateway,
            "POST",
            f"/{index}/_search?pretty",
            {**body, "size": 4, "explain": True},
            {"accept-encoding": "gzip"},
        )
        assert (packed.headers["content-encoding"], packed.ids) == ("gzip", first.ids)
        assert "trial" in packed.json()["ttc"]
        assert gzip.decompress(packed.body).startswith(b'{\n  "took"')
    full = settings.model_copy(update={"trial_log": Path("/dev/full")})
    with running_gateway(full, load=lambda _name, _folder: base) as gateway:
        assert search(gateway, index, {**body, "size": 4}).ids == first.ids
        wait_for(lambda: "not logged" in caplog.text)
        assert search(gateway, index, {**body, "size": 4}).ids == first.ids
    assert (caplog.text.count("not logged"), os.strerror(errno.ENOSPC) in caplog.text) == (1, True)


def test_a_draft_takes_the_best_of_two_rankings_in_turn() -> None:
    firsts = []
    for seed in range(200):
        drafted = team_draft("abcd", "cae", Random(seed))
        assert sorted(name for name, _ in drafted) == [*"abcde"]
        assert {name for name, team in drafted if team == "frozen"} & {"c", "e"}
        firsts.append(drafted[0])
    assert firsts.count(("a", "learned")) + firsts.count(("c", "frozen")) == 200
    assert 70 < firsts.count(("a", "learned")) < 130


def test_clicks_decide_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"index": "shop", "adapter": "new", "hits": [["a", "learned"], ["b", "frozen"]]}
    lines = [{**line, "adapter": "old", "query": "q0"}, *({**line, "query": f"q{number}"} for number in range(40))]
    clicks = [{"query": f"q{number}", "clicked": "b" if number < 5 else "a", "position": 9} for number in range(30)]
    file, log = tmp_path / "trial.jsonl", tmp_path / "clicks.jsonl"
    file.write_bytes("\n".join(map(json.dumps, lines)).encode() + b'\n{"index": "sh\xc3')  # cut by a full disk
    log.write_text("\n".join(map(json.dumps, [*clicks, {"query": "q0", "clicked": "elsewhere"}])))
    trial = ["trial", "shop", str(file), "--clicks", str(log), "--json"]
    assert run(trial) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["adapter"], found["searches"], found["clicked"], found["better"]) == ("new", 40, 30, "adapter")
    assert (found["shares"]["wins"], found["shares"]["losses"]) == (25, 5)
    assert run(["trial", "blog", *trial[2:]]) == 1
    assert "[blog]: it has [shop]" in capsys.readouterr().err
    assert run(["trial", "shop", str(log), *trial[3:]]) == 1
    assert "is no file of a trial" in capsys.readouterr().err


def test_an_adapter_serves_the_names_that_it_is_given_for(encoder: Encoder) -> None:
    dims, changed = encoder.identity.dims, replace(encoder.identity, revision="other")
    turned = Head((Linear(np.eye(dims, dtype=np.float32)[::-1].copy(), np.zeros(dims, np.float32)),))
    heads: dict[Role, Head] = {"query": turned, "document": Head()}
    one, other = (QueryAdapter(Path(name), encoder.identity, replace(changed, adapter=name), heads) for name in "ab")
    adapters = QueryAdapters({"shop": one, "blog-*": other})
    for target, adapter in {
        "shop": "a", "blog-1": "b", "blog-*": "b", "blog-%2A": "b", "blog-1,blog-2": "b",
        "": "", "*": "", "shops": "", "shop,blog-1": "", "shop,-shop": "", "b*": "",
    }.items():  # fmt: skip
        assert adapters.over(encoder, target).identity.adapter == adapter, target
    adapted, text = adapters.over(encoder, "shop"), ["a hat"]
    own, mapped = encoder.encode(text, role="query"), adapted.encode(text, role="query")
    np.testing.assert_allclose(mapped.pooled, own.pooled[:, ::-1], atol=1e-6)
    np.testing.assert_allclose(mapped.tokens[0], own.tokens[0][:, ::-1], atol=1e-6)
    np.testing.assert_array_equal(adapted.encode(text).pooled, encoder.encode(text).pooled)
    with pytest.raises(EncoderMismatch, match=r"\[shop\].*es-ttc learn"):
        QueryAdapters({"shop": replace(one, base=changed)}).over(encoder, "shop")


def test_no_document_teaches_more_than_its_share() -> None:
    documents, ones = [np.array([0, number]) for number in range(1, 101)], np.array([1.0, 0.0])
    lists = Lists(np.zeros((100, 2), np.float32), documents, [ones] * 30 + [ones[::-1]] * 70)
    trusted = [number < 10 for number in range(100)]
    found = bounded(lists, trusted, 0.05)
    assert [shares.tolist() for shares in found.targets] == [[1, 0]] * 10 + [[0.25, 0]] * 20 + [[0, 1]] * 70
    assert [shares.tolist() for shares in bounded(lists, trusted, 1).targets] == [[1, 0]] * 30 + [[0, 1]] * 70


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_index_learns_from_its_log(
    opensearch_url: str,
    index_name: str,
    encoder: Encoder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asyncio.run(_with_index(opensearch_url, index_name, _make))
    common = ["--json", "--encoder", NAME, "--engine", opensearch_url]
    attach = ["attach", index_name, "--text-fields", "text", "--yes", *common]
    log, out = tmp_path / "queries.jsonl", tmp_path / "out"
    clicks = [{"query": text, "clicked": tool, "position": 2} for text, tools in ASKED.items() for tool in tools]
    log.write_text("\n".join([*map(json.dumps, clicks), *(json.dumps({"q": f"{text}, please"}) for text in ASKED)]))
    learn = ["learn", index_name, "--out", str(out), "--reranker", "msmarco-minilm", "--rerank-budget", "50", *common]
    try:
        assert run(attach) == 0
        assert run(learn) == 1
        assert "has no judgements that count" in capsys.readouterr().err
        assert run([*learn, "--queries", str(log), "--teacher", "judgements"]) == 1
        assert "[judgements] teach 0 of 20 queries" in capsys.readouterr().err
        more = tmp_path / "more.jsonl"
        more.write_text("\n".join([log.read_text(), '{"q": 4711}', '{"q": null}']))
        assert run([*learn, "--queries", str(more), "--teacher", "judgements", "--max-queries", "20"]) == 1
        told = capsys.readouterr().err
        assert "note: 1 lines of the log were no query" in told
        assert "note: 1 less frequent queries of the log are left out (--max-queries 20)" in told
        assert not out.with_name("out.unfinished").exists()
        with relay(opensearch_url) as counted:
            learn = [*learn[:-1], counted.url, "--queries", str(log)]
            with monkeypatch.context() as patch:
                patch.setattr(session, "evaluation_of", interrupted)
                assert run(learn) == 130
            kept = [file for file in out.with_name("out.unfinished").rglob("*") if file.is_file()]
            assert len(kept) == 8  # the queries, five folds of them, the reranker's scores, what they are of
            assert not any(text.encode() in file.read_bytes() for file in kept for text in ASKED)
            reads = len(counted.passed)
            assert run([*learn, "--force"]) == 0
            assert not [one for one in counted.passed[reads:] if "_msearch" in one.target]
        assert not out.with_name("out.unfinished").exists()
        found = json.loads(capsys.readouterr().out)
        assert (found["queries"], found["taught"]) == (20, {"clicks": 10, "reranker": 5, "blend": 5})
        assert {one["query"] for one in found["verdict"]["changes"]} == {*ASKED, *(f"{text}, please" for text in ASKED)}
        assert run(learn) == 1
        assert "is no empty folder" in capsys.readouterr().err
        require_served(opensearch_url, index_name, out, encoder)
        require_tried(opensearch_url, index_name, out, encoder, tmp_path / "trial.jsonl", caplog)
    finally:
        asyncio.run(_with_index(opensearch_url, index_name, remove_traces))
