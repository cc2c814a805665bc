"""`es-ttc tune` from end to end."""

import json
from pathlib import Path

import pytest

from es_ttc.cli.app import run
from es_ttc.rescorers.tuned import Tuned

DOCUMENTS = (
    "Honey bees live in hives.",
    "A beekeeper takes honey.",
    "The night train to Rome.",
    "Hash tables map keys.",
)
QUERIES = {"q1": "insects that make honey", "q2": "sleeper rail journey", "q3": "dictionary", "q4": "who keeps bees"}
RELEVANT = {"q1": ("d0", "d1"), "q2": ("d2",), "q3": ("d3",), "q4": ("d1",)}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ES_TTC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")


def collection(folder: Path, *splits: str) -> Path:
    (folder / "qrels").mkdir(parents=True)
    corpus = (json.dumps({"_id": f"d{place}", "text": text}) for place, text in enumerate(DOCUMENTS))
    (folder / "corpus.jsonl").write_text("\n".join(corpus))
    (folder / "queries.jsonl").write_text("\n".join(json.dumps({"_id": q, "text": t}) for q, t in QUERIES.items()))
    rows = [f"{query}\t{document}\t1" for query, documents in RELEVANT.items() for document in documents]
    for split in splits:
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return folder


def test_parameters_are_chosen_written_and_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = collection(tmp_path / "bees", "train", "test"), tmp_path / "new" / "nnn.json"
    grid = '{"l1": [0.1, 0.9], "l2": [0]}'
    assert run(["tune", str(data), "--method", "nnn", "--grid", grid, "--metric", "ndcg@3", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "nnn on bees (train): 4 queries, 3 candidates" in captured.out
    assert "which flatters them" in captured.out
    assert "(defaults)" in captured.out
    tuned = Tuned.read(out)
    assert (tuned.method, tuned.data, tuned.split) == ("nnn", "bees", "train")
    assert tuned.encoder is not None

    report = json.loads(out.read_bytes())
    values = [one["value"] for one in report["tried"]]
    assert report["value"] == max(values)
    assert report["params"] == report["tried"][values.index(max(values))]["params"]
    assert report["default"] == {"params": {}, "value": values[0]}

    arguments = ["evaluate", str(data), "--methods", "dense,nnn", "--json", "--tuned", str(out)]
    assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    for name, value in tuned.params.items():
        assert found["data"]["bees"]["methods"]["nnn"]["params"][name] == value
    assert not any("very queries" in one for one in found["data"]["bees"]["warnings"])
    assert f"--tuned {out}" in found["command"]
    assert run([*arguments, "--split", "train"]) == 0
    warnings = json.loads(capsys.readouterr().out)["data"]["bees"]["warnings"]
    assert any("on these very queries" in one for one in warnings)
    assert run([*arguments, "--params", '{"nnn": {}}']) == 1
    assert "parameters of [nnn] are given twice" in capsys.readouterr().err


def test_test_queries_are_refused_but_for_cross_fitting_where_there_are_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, alone = collection(tmp_path / "both", "valid", "test"), collection(tmp_path / "alone", "test")
    tune = ["--method", "bm25", "--grid", '{"b": [0, 1]}', "--json"]
    for arguments, message in (
        ([str(both), "--split", "test"], "tune with --split valid"),
        ([str(both), "--split", "test", "--folds", "2"], "tune with --split valid"),
        ([str(both)], "has no split [train]: it has test, valid"),
        ([str(alone)], "cross-fit with --split test --folds 5"),
        ([str(alone), "--split", "test"], "cross-fit with --split test --folds 5"),
        ([str(tmp_path / "none")], "does not exist; for an index and its judged queries give --judgements none"),
    ):
        assert run(["tune", *arguments, *tune]) == 1
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.out == ""
    assert run(["tune", str(alone), "--split", "test", "--folds", "2", *tune]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["against_default"]["cross_fitted"]
    assert len(report["against_default"]["by_fold"]) == 2
    assert report["encoder"] is None
    assert run(["tune", str(both), "--split", "valid", "--sample", "3", *tune]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == 3


def test_weights_of_blend_are_written_only_for_a_clear_gain_or_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = collection(tmp_path / "bees", "train", "test"), tmp_path / "blend.json"
    tune = ["tune", str(data), "--method", "blend", "--folds", "2", "--out", str(out)]
    assert run(tune) == 1
    captured = capsys.readouterr()
    assert "weights refitted in 2 folds" in captured.out
    assert "late_interaction" in captured.out
    assert "not written" in captured.err
    assert not out.exists()

    assert run([*tune, "--force", "--json"]) == 0
    captured = capsys.readouterr()
    assert "without a clear gain" in captured.err
    report = json.loads(captured.out)
    assert report["metric"] == "ndcg@10"
    assert not report["clear"]
    assert report["against_default"]["cross_fitted"]
    assert [one["signal"] for one in report["worth"]] == ["lexical", "dense", "spectral", "late_interaction"]
    assert Tuned.read(out).params == report["params"]

    for arguments, message in (
        (["--method", "bm25", "--force"], "are for --method blend"),
        (["--method", "blend", "--signals", "dense"], "fewer than two"),
        (["--method", "blend", "--folds", "5"], "[folds] is 5, and there are 4 queries"),
    ):
        assert run(["tune", str(data), *arguments]) != 0
        assert message in capsys.readouterr().err
