"""Through real engines: the same scores as in memory, and nothing left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from es_ttc.encoders import CachedEncoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import compose
from es_ttc.lab.evaluation.datasets import Collection, Document, load_collection
from es_ttc.lab.evaluation.features import encode_corpus, encode_queries
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import resolve, retrieval
from es_ttc.lab.evaluation.plan import EvaluationPlan, run_plan
from es_ttc.lab.evaluation.rankings import Run
from es_ttc.lab.evaluation.through_engine import MAX_RESULT_WINDOW, engine_searcher, temporary_index
from es_ttc.rescorers.learned.model import read_models
from es_ttc.settings import EngineSettings
from tests.rescorers.test_learned import stump, written

pytestmark = pytest.mark.engine

METHODS = ("dense", "maxsim", "spectral", "knn:nnn", "knn:spectral")


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest) -> Collection:
    """LIMIT-small with every hundredth query, and one document without text."""
    shared: Path = request.getfixturevalue("shared_data")
    whole = load_collection(shared / "limit-small")
    kept = list(whole.queries)[::100]
    return replace(
        whole,
        documents=(*whole.documents, Document("no text", "", "")),
        queries={query: whole.queries[query] for query in kept},
        qrels={query: whole.qrels[query] for query in kept},
    )


@pytest.fixture(scope="module")
def encoder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The real MiniLM, encoding each text once."""
    return CachedEncoder(encoder, tmp_path_factory.mktemp("encodings"))


def indices(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/_cat/indices/es-ttc-evaluate-*?format=json&h=index", timeout=30) as answer:
        return [row["index"] for row in json.load(answer)]


def test_memory_and_engine_give_the_same_scores(small: Collection, engine_url: str, encoder: Encoder) -> None:
    methods = resolve(METHODS)
    spec = EvaluationPlan(methods).spec(small, encoder)
    queries = encode_queries(list(small.queries.values()), encoder, tokens=False)
    texts = [compose(document.source, spec.text_fields)[0] for document in small.documents]
    features = encode_corpus(small.documents, spec, encoder)
    settings, pool = EngineSettings(engine=engine_url), retrieval(methods)
    with temporary_index(settings, small, spec, encoder) as index:
        assert index.name in indices(engine_url)
        for window in (None, 20):
            memory = MemorySearcher(small, texts, pool, features, queries, window=window)
            with engine_searcher(settings, index, small, encoder, queries, first_pass="dense", window=window) as engine:
                for method in methods:
                    same_scores(memory.rank(method), engine.rank(method), small, window or 46)
    assert index.name not in indices(engine_url)


def same_scores(own: Run, reference: Run, collection: Collection, least: int) -> None:
    for query in collection.queries:
        expected = dict(zip(own.rankings[query], own.scores[query].tolist(), strict=False))
        found = dict(zip(reference.rankings[query], reference.scores[query].tolist(), strict=False))
        assert len(expected) >= least
        shared = expected.keys() & found.keys()
        assert len(shared) >= len(expected) - 1  # a tie at the window's edge may fall either way
        np.testing.assert_allclose(
            [found[document] for document in shared], [expected[document] for document in shared], atol=1e-4
        )
        assert set(reference.rankings[query]) - {"no text"} == {one.id for one in collection.documents} - {"no text"}


def test_every_method_runs_and_bm25_agrees_with_memory(small: Collection, engine_url: str, encoder: Encoder) -> None:
    few = list(small.queries)[:10]
    collection = replace(small, queries={q: small.queries[q] for q in few}, qrels={q: small.qrels[q] for q in few})
    methods = resolve(["bm25", "dense", "hybrid", "spectral"])
    plan = EvaluationPlan(methods, first_pass="bm25")
    through, where = run_plan(replace(plan, engine=EngineSettings(engine=engine_url)), collection, encoder)
    assert where.split()[0] in ("opensearch", "elasticsearch")
    memory, _ = run_plan(plan, collection, encoder)
    for name in through.methods:
        own, reference = memory.methods[name].scores, through.methods[name].scores
        # Lucene rounds lengths, so near-ties of BM25 may fall otherwise, and `hybrid` counts ranks.
        assert reference.mean("ndcg@10") == pytest.approx(own.mean("ndcg@10"), abs=0.05), name


def test_numeric_fields_of_a_collection_are_those_of_its_index(
    engine_url: str, encoder: Encoder, tmp_path: Path
) -> None:
    years = {"old": 1900.5, "new": 2020.0, "newer": 2024.25, "undated": None}
    documents = tuple(
        Document(name, "", f"A {name} bee.", {} if year is None else {"metadata.year": year})
        for name, year in years.items()
    )
    collection = Collection("dated", "test", documents, {"q": "bee"}, {"q": {"newer": 1}})
    fields = [{"name": "metadata.year"}]
    trees = stump(feature=[4], threshold=[2022.0], default_left=[True])
    written(tmp_path, "dated", {**trees, "blend": 0.0, "fields": fields})
    plan = EvaluationPlan(resolve(["learned"], served=read_models(tmp_path)), window=4, ranking_models=tmp_path)
    for through in (None, EngineSettings(engine=engine_url)):
        found, _ = run_plan(replace(plan, engine=through), collection, encoder)
        assert found.methods["learned"].scores.mean("mrr") == 1.0, through
        lacking = replace(collection, documents=documents[-1:])
        with pytest.raises(InvalidRequest, match=r"\[dated\]"):
            run_plan(replace(plan, engine=through), lacking, encoder)


def test_walks_in_memory_are_those_through_the_engine(small: Collection, engine_url: str, encoder: Encoder) -> None:
    params = {"rr": {}, "gar": {"batch": 5}, "slidegar": {}, "rgs": {"seeds": 4}}
    methods = resolve(list(params), {name: {"budget": 20, **more} for name, more in params.items()})
    plan = EvaluationPlan(methods, window=10, engine=EngineSettings(engine=engine_url))
    few = list(small.queries)[:6]
    collection = replace(small, queries={q: small.queries[q] for q in few}, qrels={q: small.qrels[q] for q in few})
    through, _ = run_plan(plan, collection, encoder)
    memory, _ = run_plan(replace(plan, engine=None), collection, encoder)
    for name in params:
        there, here = through.methods[name].scores.values, memory.methods[name].scores.values
        for metric in ("ndcg@10", "recall@10"):
            np.testing.assert_allclose(there[metric], here[metric], atol=0.05, err_msg=name)


def test_titles_are_searched_too(opensearch_url: str, encoder: Encoder) -> None:
    documents = (Document("a", "Zebra", "an animal"), Document("b", "", "a building"))
    collection = Collection("titled", "test", documents, {"q": "zebra"}, {"q": {"a": 1}})
    result, _ = run_plan(
        EvaluationPlan(resolve(["bm25"]), engine=EngineSettings(engine=opensearch_url)), collection, encoder
    )
    assert result.methods["bm25"].scores.mean("mrr") == 1.0


def test_a_run_that_fails_leaves_no_index(small: Collection, opensearch_url: str, encoder: Encoder) -> None:
    before = indices(opensearch_url)
    settings = EngineSettings(engine=opensearch_url)
    plan = EvaluationPlan(resolve(["dense", "spectral"]), first_pass="hybrid", engine=settings)
    with pytest.raises(InvalidRequest, match=r"\[first-pass\].*--engine"):
        run_plan(plan, small, encoder)
    plan = EvaluationPlan(resolve(["bm25"], {"bm25": {"k1": 0.9}}), engine=settings)
    with pytest.raises(InvalidRequest, match=r"\[bm25\].*--engine"):
        run_plan(plan, small, encoder)
    assert indices(opensearch_url) == before


def test_a_window_beyond_an_engine_s_reach_is_refused(opensearch_url: str, encoder: Encoder) -> None:
    documents = tuple(Document(str(i), "", "") for i in range(MAX_RESULT_WINDOW + 1))
    collection = Collection("wide", "test", documents, {"q": "x"}, {"q": {"0": 1}})
    plan = EvaluationPlan(resolve(["spectral"]), window=None, engine=EngineSettings(engine=opensearch_url))
    with pytest.raises(InvalidRequest, match=r"\[window\]"):
        run_plan(plan, collection, encoder)


def test_running_writes_are_stopped_before_the_temporary_index_is_deleted(
    small: Collection, opensearch_url: str, encoder: Encoder
) -> None:
    spec = EvaluationPlan(resolve(["dense"])).spec(small, encoder)

    async def write(engine: Engine, name: str) -> None:
        while True:
            await engine.bulk(name, [b'{"index":{}}', b'{"title":"late"}'])

    with temporary_index(EngineSettings(engine=opensearch_url), small, spec, encoder) as temporary:
        task = temporary.runner.get_loop().create_task(write(temporary.engine, temporary.name))
        temporary.runner.run(asyncio.sleep(0.2))
    assert task.cancelled()
    assert temporary.name not in indices(opensearch_url)


def test_an_interrupted_command_leaves_no_index(shared_data: Path, opensearch_url: str, tmp_path: Path) -> None:
    before = set(indices(opensearch_url))
    command = [sys.executable, "-m", "es_ttc", "evaluate", str(shared_data / "limit-small"), "--engine", opensearch_url]
    environment = {**os.environ, "ES_TTC_ENCODER": "minilm@onnx", "ES_TTC_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "results.json")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
    )
    deadline = time.monotonic() + 120
    while not set(indices(opensearch_url)) - before:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped" in errors
    assert set(indices(opensearch_url)) <= before
    assert not (tmp_path / "results.json").exists()
