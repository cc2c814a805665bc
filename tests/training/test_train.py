"""`es-ttc train` from end to end: the artefact, what it serves, a killed run that goes on, what is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from es_ttc.cli.app import run
from es_ttc.encoders import Encoder, load_encoder
from es_ttc.encoders.cache import cached
from es_ttc.errors import ConfigurationError
from es_ttc.lab.training.recipes.nnn import GRID
from es_ttc.rescorers.tuned import Tuned
from tests.training.conftest import NAME, TOOLS, write, write_seen

HALF = ("--precision", "bfloat16")
BY_NDCG = ("--metric", "ndcg@10", "--learning-rate", "0.01")
DENSE = (*HALF, *BY_NDCG, "--epochs", "12", "--batch", "8", "--hidden", "32", "--patience", "12")
PENALTY = ("--l1", "0.1", "--l2", "0.2")
NNN = (*PENALTY, "--epochs", "4", "--batch", "4", "--hidden", "32", "--steps", "10")


def trained(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["train", *arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_trained_adapter_loads_as_an_encoder(
    tmp_path: Path, encoder: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    data, dense, nnn = write_seen(tmp_path / "tools"), tmp_path / "dense", tmp_path / "tools-nnn"
    course = trained(capsys, "dense", str(data), "--out", str(dense), *DENSE)
    assert course["losses"][-1] < course["losses"][0] / 2
    assert course["valid"][course["best_epoch"]] == max(course["valid"]) > course["valid"][0]
    found = trained(capsys, "nnn", str(data), "--start", str(dense), "--out", str(nnn), *NNN)
    assert {"valid, dense, before", "test, dense, after", "test, nnn, after"} <= found["metrics"].keys()
    assert sorted(path.name for path in nnn.iterdir()) == ["README.md", "card.json", "heads.safetensors", "nnn.json"]

    served = load_encoder(f"{nnn}@onnx", cache_dir=tmp_path)
    assert served.identity.key == found["encoder"] == Tuned.read(nnn / "nnn.json").encoder
    assert served.identity.adapter.startswith("tools-nnn@")
    assert json.loads((nnn / "card.json").read_bytes())["base"]["name"] == "minilm"
    for name in (f"{NAME}+{nnn}", f"{nnn}@onnx"):
        other = load_encoder(name, cache_dir=tmp_path)
        assert (other.identity, other.backend) == (served.identity, encoder.backend)
    texts = [*TOOLS.values(), ""]
    query, document = (served.encode(texts, role=role, tokens=False).pooled for role in ("query", "document"))
    plain = encoder.encode(texts, tokens=False).pooled
    assert not np.allclose(query, document, atol=0.01)
    assert not np.allclose(plain, document, atol=0.01)
    assert not document[-1].any()
    np.testing.assert_array_equal(cached(served, tmp_path).encode(texts, tokens=False).pooled, document)
    tokens = served.encode(texts[:1])
    np.testing.assert_allclose(np.linalg.norm(tokens.tokens[0], axis=1), 1, atol=1e-5)
    assert Tuned.read(nnn / "nnn.json").params == {"l1": 0.1, "l2": 0.2}
    assert "es-ttc index create" in (nnn / "README.md").read_text()


def test_the_figures_are_those_of_an_evaluation(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made"
    found = trained(capsys, "nnn", str(data), "--out", str(out), *NNN, "--epochs", "2")
    arguments = ["evaluate", str(data), "--methods", "dense,nnn", "--tuned", str(out / "nnn.json"), "--json"]
    arguments += ["--first-pass", "dense"]  # as in training
    for encoder, expected in ((f"{out}@onnx", "after"), (NAME, "before")):
        assert run([*arguments, "--encoder", encoder]) == 0, capsys.readouterr().err
        methods = json.loads(capsys.readouterr().out)["data"]["tools"]["methods"]
        for method in ("dense", "nnn"):
            figures = found["metrics"].get(f"test, {method}, {expected}", {})
            for metric, value in figures.items():
                assert methods[method][metric] == pytest.approx(value, abs=1e-6), (method, metric)


def test_a_killed_training_goes_on_to_the_same_losses(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["nnn", str(data), *NNN, "--epochs", "12", "--patience", "12"]
    torch.set_num_threads(1)  # as in the other process
    checkpoint = tmp_path / "killed" / "checkpoint.safetensors"
    killed = subprocess.Popen(
        [sys.executable, "-m", "es_ttc", "train", *arguments, "--out", str(checkpoint.parent)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not checkpoint.exists() and killed.poll() is None:
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "card.json").exists()
    assert run(["train", *arguments, "--out", str(checkpoint.parent)]) == 1
    assert "is of a training that was stopped: go on with --resume" in capsys.readouterr().err
    assert run(["train", *arguments, "--out", str(checkpoint.parent), "--resume", "--l1", "0.3"]) == 1
    assert "[options] was" in capsys.readouterr().err
    again = trained(capsys, *arguments, "--out", str(checkpoint.parent), "--resume")
    whole = trained(capsys, *arguments, "--out", str(tmp_path / "whole"))
    assert len(whole["losses"]) == 12
    assert again["step_losses"] == whole["step_losses"]
    assert again["valid"] == whole["valid"]
    assert again["params"] == whole["params"]
    heads = [(tmp_path / name / "heads.safetensors").read_bytes() for name in ("killed", "whole")]
    assert heads[0] == heads[1]
    assert not checkpoint.exists()


def test_train_refuses_invalid_data_and_options(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"

    def refused(*arguments: str) -> str:
        assert run(["train", *arguments]) == 1
        return capsys.readouterr().err

    other = write(tmp_path / "other", "test")
    assert "has no split [train] to learn from: it has test" in refused("dense", str(other), "--out", str(out))
    assert not out.exists()
    assert "is no folder that `es-ttc train` has finished" in refused(
        "nnn", str(data), "--start", str(other), "--out", str(out)
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "is no empty folder (it holds mine.txt)" in refused("dense", str(data), "--out", str(tmp_path / "full"))
    metric = refused("dense", str(data), "--out", str(out), "--metric", "map@3")
    assert "unknown metric [map@3]: take one of ndcg@k" in metric
    assert "device [cdua] can't be used" in refused("dense", str(data), "--out", str(out), "--device", "cdua")
    trained(capsys, "dense", str(data), "--out", str(out), "--epochs", "1", "--hidden", "4")
    assert "holds a trained encoder already" in refused("dense", str(data), "--out", str(out))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda card: card.update(version=9), "was trained by a newer es-ttc"),
        (lambda card: card.pop("base"), r"card.json\] is no card of a trained encoder: \[base\]"),
        (lambda card: card["heads"]["query"].append("mlp"), "does not fit its card"),
        (lambda card: card["base"]["identity"].update(revision="0" * 12), "was trained on the vectors of"),
    ],
)
def test_damaged_artefacts_are_refused(data: Path, tmp_path: Path, capsys: Any, damage: Any, message: str) -> None:
    out = tmp_path / "out"
    trained(capsys, "dense", str(data), "--out", str(out), "--epochs", "1", "--hidden", "4")
    card = json.loads((out / "card.json").read_bytes())
    damage(card)
    (out / "card.json").write_text(json.dumps(card))
    with pytest.raises(ConfigurationError, match=message):
        load_encoder(f"{out}@onnx", cache_dir=tmp_path)


def test_colt_learns_a_vector_a_document_from_sets(
    data: Path, tmp_path: Path, encoder: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "colt"
    found = trained(capsys, "colt", str(data), "--out", str(out), "--epochs", "15", *HALF)
    assert found["losses"][-1] < found["losses"][0]
    served = load_encoder(f"{out}@onnx", cache_dir=tmp_path)
    texts = [f"{tool}: {text}" for tool, text in TOOLS.items()]
    before, after = (one.encode(texts, tokens=False).pooled for one in (encoder, served))
    changed = np.abs(before - after).max(axis=1) > 0.01
    assert changed.sum() >= 4  # those that a train query asks for
    unseen = ["A document that no query asked for."]
    same = [one.encode(unseen, tokens=False).pooled for one in (encoder, served)]
    np.testing.assert_allclose(same[0], same[1], atol=1e-6)
    queries = [one.encode(unseen, role="query", tokens=False).pooled for one in (encoder, served)]
    np.testing.assert_array_equal(queries[0], queries[1])


@pytest.mark.parametrize("family", ["whiten", "linear", "low-rank", "mlp"])
def test_a_head_is_learned_from_several_collections(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    other = write(tmp_path / "more", "train", "valid")
    out = tmp_path / "head"
    found = trained(
        capsys, "head", str(data), str(other), "--family", family, "--out", str(out), "--epochs", "3", "--batch", "8"
    )
    served = load_encoder(f"{out}@onnx", cache_dir=tmp_path)
    query, document = (served.encode(["weather"], role=role, tokens=False).pooled for role in ("query", "document"))
    np.testing.assert_array_equal(query, document)
    assert {"tools: test, dense, after", "more: valid, dense, before"} <= found["metrics"].keys()
    assert bool(found["losses"]) == (family != "whiten")


def test_the_encoder_itself_is_tuned_where_that_is_asked_for(
    data: Path, tmp_path: Path, encoder: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    dense, nnn = tmp_path / "dense", tmp_path / "nnn"
    options = ("--tune", "encoder", "--learning-rate", "1e-4", "--epochs", "1", "--batch", "8", "--metric", "ndcg@10")
    trained(capsys, "dense", str(data), "--out", str(dense), *options)
    found = trained(capsys, "nnn", str(data), "--start", str(dense), "--out", str(nnn), *options, "--hidden", "16")
    assert tuple(found["params"]["nnn"].values()) in GRID
    assert {path.name for path in nnn.iterdir() if path.is_dir()} == {"query", "document"}
    assert not list(nnn.rglob("*.bin"))
    served = load_encoder(f"{nnn}@onnx", cache_dir=tmp_path)
    assert served.identity.key == found["encoder"]
    texts = list(TOOLS.values())
    for role in ("query", "document"):
        before, after = (one.encode(texts, role=role, tokens=False).pooled for one in (encoder, served))
        assert 0.5 < (before * after).sum(axis=1).min() < 0.9999
