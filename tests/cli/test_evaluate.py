"""`es-ttc evaluate` from end to end, in memory."""

import io
import json
import shlex
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from es_ttc.cli.app import run
from es_ttc.cli.evaluate import command_line, results_table
from es_ttc.lab.evaluation.metrics import headline_metrics, metric_names
from tests.support.adapters import make_adapter

CORPUS = {
    "bees": ("Beekeeping", "Honey bees live in hives. The keeper takes the honey."),
    "night train": ("", "The night train from Vienna to Rome leaves at seven and carries sleeping cars."),
    "cake": ("Honey cake", "Stir flour, eggs and butter, then bake for an hour."),
    "code": ("", "A hash table maps keys to values; collisions are chained."),
}
QUERIES = {"q 1": "insects that make honey", "q2": "sleeper rail journey", "q3": "dictionary data structure"}
RELEVANT = {"q 1": "bees", "q2": "night train", "q3": "code"}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Versus(Strict):
    delta: float
    interval: dict[Literal["low", "high"], float]
    p: float = Field(gt=0, le=1)
    wins: int
    ties: int
    losses: int


class MethodResults(BaseModel):
    model_config = ConfigDict(extra="allow")
    seconds: float = Field(ge=0)
    params: dict[str, object]
    latency_ms: dict[Literal["mean", "p50", "p95"], float]
    intervals: dict[str, tuple[float, float]]
    versus: dict[str, Versus]
    per_query: dict[str, list[float]]


class DataResults(Strict):
    queries: int
    documents: int
    split: str
    judgements: int
    relevant: int
    warnings: list[str]
    baseline: str
    query_ids: list[str]
    methods: dict[str, MethodResults]


class Results(Strict):
    data: dict[str, DataResults]
    k: int
    encoder: str | None
    encoder_backend: str | None
    engine: str
    settings: dict[str, object]
    bootstrap: dict[str, float]
    machine: str
    versions: dict[str, str]
    command: str
    date: str


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ES_TTC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "small set"
    (folder / "qrels").mkdir(parents=True)
    corpus = [json.dumps({"_id": key, "title": title, "text": text}) for key, (title, text) in CORPUS.items()]
    (folder / "corpus.jsonl").write_text("\n".join(corpus))
    (folder / "queries.jsonl").write_text("\n".join(json.dumps({"_id": q, "text": t}) for q, t in QUERIES.items()))
    rows = [f"{query}\t{document}\t1" for query, document in RELEVANT.items()]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return folder


def test_everything_is_measured_written_and_shown(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = tmp_path / "new" / "results.json", tmp_path / "report"
    params = '{"spectral": {"scales": [1, 5, "mean"]}}'
    assert run(["evaluate", str(small), "--params", params, "--out", str(out), "--report", str(report)]) == 0
    captured = capsys.readouterr()
    assert "small set (test): 4 documents, 3 queries" in captured.out
    assert str(out) in captured.err.replace("\n", "")

    found = Results.model_validate_json(out.read_bytes())
    assert found.engine == "memory"
    assert found.encoder is not None
    assert found.encoder.startswith("all-MiniLM-L6-v2@")
    data = found.data["small set"]
    assert (data.queries, data.documents, data.baseline) == (3, 4, "dense")
    assert data.query_ids == list(QUERIES)
    assert list(data.methods) == ["blend", "hybrid", "bm25", "dense", "maxsim", "spectral"]
    for name, method in data.methods.items():
        means = method.model_extra or {}
        assert list(means) == list(metric_names(10, vectors=True)), name
        for metric, mean in means.items():
            low, high = method.intervals[metric]
            assert (-1 if metric.startswith("ils@") else 0) <= low <= mean <= high <= 1
        assert set(method.per_query) == set(headline_metrics(10))
        for metric, values in method.per_query.items():
            assert sum(values) / 3 == pytest.approx(means[metric], abs=1e-5)
        assert set(method.versus) == (set() if name == "dense" else set(means))
        assert f"{means['ndcg@10']:.3f}" in captured.out
        assert f"{means['ndcg@10']:.3f}" in (report / "index.html").read_text()
    assert data.methods["spectral"].params["scales"] == [1.0, 5.0, "mean"]
    assert (report / "results.json").read_bytes() == out.read_bytes()


def test_the_command_in_the_results_makes_the_same_results(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", str(small), "--methods", "dense,spectral", "--window", "2", "--k", "3", "--json"]
    assert run([*arguments, "--params", '{"spectral": {"scales": [1]}}', "--baseline", "spectral"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert run([*shlex.split(first["command"])[1:], "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["command"] == second["command"]
    for name, method in first["data"]["small set"]["methods"].items():
        again = second["data"]["small set"]["methods"][name]
        assert {key: again[key] for key in method if key not in ("seconds", "latency_ms")} == {
            key: method[key] for key in method if key not in ("seconds", "latency_ms")
        }
    assert "ndcg@3" in first["data"]["small set"]["methods"]["dense"]


def test_bm25_alone_needs_no_encoder(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ES_TTC_ENCODER", "/nowhere/at/all")
    assert run(["evaluate", str(small), "--methods", "bm25", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["encoder"] is None
    assert found["data"]["small set"]["methods"]["bm25"]["recall@10"] == pytest.approx(1 / 3)


def test_a_failure_leaves_no_results(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    assert run(["evaluate", str(small), str(tmp_path / "absent"), "--methods", "bm25", "--out", str(out)]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert not out.exists()


def test_credentials_of_the_engine_are_not_in_the_command() -> None:
    arguments = ["data/mine", "--engine", "https://someone:secret@engine.example:9200", "--json"]
    assert command_line(arguments) == "es-ttc evaluate data/mine --engine https://engine.example:9200"


def test_a_narrow_terminal_gets_the_columns_that_fit(small: Path) -> None:
    from es_ttc.lab.evaluation.datasets import load_collection
    from es_ttc.lab.evaluation.methods import resolve
    from es_ttc.lab.evaluation.plan import EvaluationPlan
    from es_ttc.lab.evaluation.plan import run_plan as run_plan

    result, _ = run_plan(EvaluationPlan(resolve(["bm25"])), load_collection(small))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(results_table(result, 10, wide=False))
    shown = console.export_text()
    assert all(heading in shown for heading in ("method", "ndcg@10", "recall@10", "mrr", "won/tied/lost"))


@pytest.mark.slow
def test_an_adapter_is_measured_under_its_own_name(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@torch:float32")
    adapter = make_adapter(tmp_path / "law", 0, cache=tmp_path / "cache")
    found = []
    for more in ([], ["--adapter", str(adapter)]):
        assert run(["evaluate", str(small), "--methods", "dense", "--json", *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    plain, adapted = found
    assert adapted["encoder"].startswith(f"{plain['encoder']}+law@")
    assert adapted["command"].endswith(f"--adapter {adapter}")
