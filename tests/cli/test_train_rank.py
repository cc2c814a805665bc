"""`es-ttc train rank` from end to end."""

import json
from pathlib import Path

import pytest

from es_ttc.cli.app import run
from es_ttc.rescorers.learned.model import read_model
from tests.cli.test_tune import collection

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ES_TTC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")


def test_a_model_is_written_only_for_a_clear_gain_or_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = collection(tmp_path / "bees", "train", "test"), tmp_path / "models" / "mine.json"
    train = ["train", "rank", str(data), "--folds", "2", "--out", str(out)]
    assert run(train) == 1
    captured = capsys.readouterr()
    assert "learned on bees (train): 4 queries, 2 folds" in captured.out
    assert "no clear gain over blend" in captured.err
    assert "not written" in captured.err
    assert not out.exists()

    assert run([*train, "--force", "--json"]) == 0
    captured = capsys.readouterr()
    assert "without a clear gain over blend" in captured.err
    report = json.loads(captured.out)
    assert (report["data"], report["queries"], report["clear"]) == ("bees", 4, False)
    assert report["against_blend"]["delta"] == 0  # so few documents are never parted: the ranking is blend's
    assert read_model(out).trained["encoder"] == report["encoder"]

    evaluate = ["evaluate", str(data), "--methods", "blend,learned", "--json"]
    assert run([*evaluate, "--ranking-models", str(out.parent)]) == 0
    found = json.loads(capsys.readouterr().out)["data"]["bees"]
    methods = found["methods"]
    assert not any("learned" in one for one in found["warnings"])
    assert methods["learned"]["params"] == {"model": None}
    assert methods["learned"]["per_query"] == methods["blend"]["per_query"]
    assert run([*evaluate, "--ranking-models", str(out.parent), "--split", "train"]) == 0
    warnings = json.loads(capsys.readouterr().out)["data"]["bees"]["warnings"]
    assert "learned was trained on these very queries: its figures are too good" in warnings


def test_train_rank_refuses_invalid_options_before_it_encodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, alone = collection(tmp_path / "both", "train", "test"), collection(tmp_path / "alone", "test")
    for arguments, message in (
        ([str(both), "--out", "mine.txt"], "write NAME.json"),
        ([str(both), "--out", "mine.json", "--split", "test"], "has other queries than those of [test]"),
        ([str(alone), "--out", "mine.json"], "cross-fit with --split test --folds 5"),
        ([str(alone), "--out", "mine.json", "--split", "test", "--folds", "5"], "there are 4 queries"),
        ([str(both), "--out", "mine.json", "--signals", "dense,lexcal"], "did you mean [lexical]"),
        ([str(both), "--out", "mine.json", "--metric", "ndcg"], "unknown metric [ndcg]"),
        ([str(both), "--out", "mine.json"], "[folds] is 5, and there are 4 queries"),
        ([str(both), "--out", "mine.json", "--field", "price:missing=x"], "[x] after [missing=] is no number"),
        ([str(both), "--out", "mine.json", "--folds", "2", "--field", "price"], "its documents have no numbers"),
        ([str(both), "--out", "mine.json", "--index", "shop", "--window", "all"], "give a number with --index"),
    ):
        assert run(["train", "rank", *arguments]) == 1
        assert message in capsys.readouterr().err
