"""`es-ttc train late` from end to end: the model's folder, its own library, an engine, a stopped run that goes on."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import MultiVectorEncoder
from transformers import BertForSequenceClassification, BertModel

from es_ttc.cli.app import run as command
from es_ttc.encoders import load_encoder
from es_ttc.encoders.late_files import read_late
from es_ttc.encoders.multi_vector import settings_of
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.bm25 import Bm25
from es_ttc.lab.training.late.recipe import (
    JudgedTexts,
    LateRecipe,
    known_relevant,
    load_late_task,
    negatives_of,
    pool_of,
)
from es_ttc.lab.training.late.session import (
    LateRequest,
    build_model,
    checkpoint_of,
    principal_directions,
    run_late_training,
    train_last_layers,
)
from es_ttc.lab.training.loop import TrainingProgress
from es_ttc.lab.training.options import LateOptions, LateShape, LoopOptions
from tests.serving.client import search
from tests.serving.conftest import fill
from tests.support import late_models
from tests.support.gateway import gateway_to
from tests.support.late_models import HIDDEN, backbone, late_model
from tests.training.conftest import ASKED, TOOLS, write, write_seen

ON_ONE_ENGINE = True

pytestmark = pytest.mark.slow

SHAPE = LateShape(dimensions=16, query_length=32, document_length=48)
LOOP = LoopOptions(epochs=3, batch=4, learning_rate=5e-3, patience=3, threads=1, save_seconds=0)
OPTIONS = LateOptions(shape=SHAPE, train_length=24, pool=6)
TEXTS = [f"{name}: {text}" for name, text in TOOLS.items()]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer with random weights and nothing else."""
    return backbone(tmp_path_factory.mktemp("late") / "plain")


@pytest.fixture(scope="session")
def trained(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command prints, for a training whose folder is in it."""
    base = tmp_path_factory.mktemp("trained-late")
    data = write_seen(base / "tools")
    arguments = ["--epochs", "12", "--patience", "12", "--batch", "4", "--learning-rate", "0.005"]
    shape = ["--dimensions", "16", "--query-length", "32", "--document-length", "48", "--train-length", "40"]
    out = base / "models" / "tools-late"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_TTC_CACHE_DIR", str(base / "cache"))
        status = command(
            ["train", "late", str(data), "--backbone", str(plain), "--out", str(out), *arguments, *shape, "--json"]
        )
    assert status == 0
    record = json.loads((out / "training.json").read_bytes())
    return {**record, "out": out, "data": data, "base": base}


def request(plain: Path, tmp_path: Path, name: str, **changed: Any) -> LateRequest:
    data = tmp_path / "tools"
    if not data.exists():
        write(data, "train", "test")
    return LateRequest(data, str(plain), tmp_path / name, OPTIONS, LOOP, **changed)


def test_a_trained_late_model_loads_in_its_own_library(trained: dict[str, Any]) -> None:
    out, course = trained["out"], trained["course"]
    assert course["losses"][-1] < course["losses"][0] / 2
    assert course["valid"][course["best_epoch"]] == max(course["valid"]) > course["valid"][0]
    assert [path.name for path in out.parent.iterdir()] == ["tools-late"]
    own, reference = load_encoder(f"{out}@torch:float32"), late_models.library(out)
    assert (own.identity.model, own.identity.dims, own.identity.max_length) == ("tools-late", 16, 48)
    assert read_late(out).late == settings_of(reference, source="it")
    queries, documents = list(ASKED), TEXTS
    their_queries, their_documents = reference.encode_query(queries), reference.encode_document(documents)
    expected = reference.similarity(their_queries, their_documents).numpy()
    encoded = own.encode(documents).tokens
    for place, query in enumerate(own.encode(queries, role="query").tokens):
        sums = [(query @ document.T).max(axis=1).sum() for document in encoded]
        np.testing.assert_allclose(sums, expected[place], atol=1e-4)


def test_trained_late_model_is_evaluated_in_memory(trained: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The figure is the one that the epoch was chosen by, as all documents are in the pool."""
    arguments = ["--methods", "bm25,maxsim,blend", "--split", "valid", "--window", "all", "--codec", "float16"]
    name = f"{trained['out']}@torch:float32"
    assert command(["evaluate", str(trained["data"]), *arguments, "--encoder", name, "--json"]) == 0
    methods = json.loads(capsys.readouterr().out)["data"]["tools"]["methods"]
    best = trained["course"]["valid"][trained["course"]["best_epoch"]]
    assert methods["maxsim"]["ndcg@10"] == pytest.approx(best, abs=0.01)
    assert methods["maxsim"]["ndcg@10"] > methods["bm25"]["ndcg@10"]


def test_an_engines_scores_are_the_librarys(trained: dict[str, Any], engine_url: str, index_name: str) -> None:
    name = f"{trained['out']}@torch:float32"
    encoder, library = load_encoder(name), late_models.library(trained["out"])
    documents = [{"_id": str(place), "text": text} for place, text in enumerate(TEXTS)]
    spec = IndexSpec(encoder.identity, text_fields=("text",), tokens="nested")
    asyncio.run(fill(engine_url, index_name, spec, encoder, documents, shards=1))
    query = next(iter(ASKED))
    section = {"window_size": 50, "ttc": {"query_text": query, "method": "maxsim"}}
    with gateway_to(engine_url, encoder, encoder=name) as gateway:
        body = search(gateway, index_name, {"query": {"match_all": {}}, "rescore": section, "size": 50}).json()
    assert body["ttc"]["applied"], body["ttc"]
    found = {int(hit["_id"]): hit["_score"] for hit in body["hits"]["hits"]}
    [tokens] = library.encode_query([query])
    sums = library.similarity([tokens], library.encode_document(TEXTS)).numpy()[0]
    np.testing.assert_allclose([found[place] for place in range(len(TEXTS))], (1 + sums / len(tokens)) / 2, atol=1e-4)


def test_a_stopped_training_goes_on_to_the_same_weights(plain: Path, tmp_path: Path) -> None:
    class Stopped(Exception):
        """Stands for the end of the process: nothing of the session runs after it."""

    def stop(where: TrainingProgress, steps: int) -> None:
        if (where.epoch, where.step) == (1, 1):
            assert steps == 1
            raise Stopped

    whole = run_late_training(request(plain, tmp_path, "whole"), cache_dir=tmp_path)
    stopped = request(plain, tmp_path, "stopped")
    with pytest.raises(Stopped):
        run_late_training(stopped, cache_dir=tmp_path, report=stop)
    assert not stopped.out.exists()
    with pytest.raises(InvalidRequest, match=r"stopped.checkpoint.safetensors\]"):
        run_late_training(stopped, cache_dir=tmp_path)
    other = replace(stopped, resume=True, options=replace(OPTIONS, negatives=2))
    with pytest.raises(ConfigurationError, match=r"\[options\].*negatives"):
        run_late_training(other, cache_dir=tmp_path)
    resumed = run_late_training(replace(stopped, resume=True), cache_dir=tmp_path)
    assert resumed.course == whole.course
    assert not checkpoint_of(stopped.out).exists()
    for name in ("model.safetensors", "1_Dense/model.safetensors"):
        assert (stopped.out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    other_seed = replace(request(plain, tmp_path, "seed"), loop=replace(LOOP, seed=1))
    assert run_late_training(other_seed, cache_dir=tmp_path).course.losses != whole.course.losses


def test_the_untrained_model_of_full_width_is_the_backbones_own_late_interaction(plain: Path) -> None:
    model = build_model(plain, replace(SHAPE, dimensions=HIDDEN), TEXTS)
    own: Any = BertModel.from_pretrained(plain)
    own.eval()
    tokenizer = model.tokenizer
    query, document = "dog at night", "the cat drinks milk"
    rows = []
    for text in (query, document):
        with torch.no_grad():
            vectors = own(**tokenizer([text], return_tensors="pt")).last_hidden_state[0]
        rows.append(torch.nn.functional.normalize(vectors, dim=1))
    expected = float((rows[0] @ rows[1].T).max(dim=1).values.sum())
    found = model.similarity(model.encode_query([query]), model.encode_document([document]))
    assert float(found) == pytest.approx(expected, abs=1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_principal_directions_keep_what_a_singular_value_decomposition_keeps(seed: int, count: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((20, 6)) * [5, 4, 3, 2, 1, 0.5]
    found = principal_directions(torch.from_numpy(rows), count).double().numpy()
    np.testing.assert_allclose(found @ found.T, np.eye(count), atol=1e-5)
    lengths = np.linalg.svd(rows, compute_uv=False)
    assert np.square(rows @ found.T).sum() == pytest.approx(np.square(lengths[:count]).sum(), rel=1e-4)


def test_the_loss_is_cross_entropy_of_the_librarys_scores(plain: Path, tmp_path: Path) -> None:
    """Computed by hand: each query's documents are its positive and all that are not relevant to it."""
    task = load_late_task(write_seen(tmp_path / "tools"), seed=0, pool=8)
    model = build_model(plain, SHAPE, task.documents)
    recipe = LateRecipe(task, model, LateOptions(negatives=2, train_length=48, temperature=0.5))
    recipe.begin_epoch(np.random.default_rng(0))
    batch = np.arange(len(task.train))
    with torch.no_grad():
        found = float(recipe.loss(batch, np.random.default_rng(0)))
    drawn = recipe.drawn
    scores = model.similarity(model.encode_query(list(task.train.texts)), model.encode_document(task.documents))
    losses, left_out = [], 0
    for query, relevant in enumerate(task.train.relevant):
        others = [
            one for row, places in enumerate(drawn) for column, one in enumerate(places) if (row, column) != (query, 0)
        ]
        left_out += sum(one in relevant for one in others)
        kept = [drawn[query, 0], *(one for one in others if one not in relevant)]
        logits = scores[query, torch.tensor(kept)] / 0.5
        losses.append(float(torch.logsumexp(logits, 0) - logits[0]))
    assert left_out
    assert found == pytest.approx(np.mean(losses), abs=1e-4)


@given(st.data())
def test_relevant_documents_are_no_negatives(data: st.DataObject) -> None:
    queries, each = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    drawn = np.array(
        data.draw(
            st.lists(st.lists(st.integers(0, 5), min_size=each, max_size=each), min_size=queries, max_size=queries)
        )
    )
    relevant = [np.array(sorted({row[0], *data.draw(st.sets(st.integers(0, 5)))})) for row in drawn.tolist()]
    found = known_relevant(relevant, drawn)
    for row in range(queries):
        for place, document in enumerate(drawn.reshape(-1)):
            expected = document in relevant[row] and place != row * each
            assert bool(found[row, place]) == expected


def test_negatives_are_what_bm25_finds_beside_relevant_documents() -> None:
    index = Bm25(["cat", "cat dog", "dog", "bird", "cat cat"])
    assert negatives_of(index, "cat", np.array([0])).tolist() == [4, 1, 2, 3]
    mined = [np.array([3, 4]), np.array([5, 6])]
    queries = JudgedTexts(["a", "b"], [np.array([0]), np.array([1, 2])], mined)
    assert pool_of(queries, 5).tolist() == [0, 1, 2, 3, 5]
    assert pool_of(queries, 2).tolist() == [0, 1, 2]
    assert pool_of(queries, 50).tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_layers_that_are_not_trained_stay_as_they_are(plain: Path, tmp_path: Path) -> None:
    found = replace(request(plain, tmp_path, "out"), options=replace(OPTIONS, layers=1))
    run_late_training(found, cache_dir=tmp_path)
    before: Any = BertModel.from_pretrained(plain)
    after: Any = BertModel.from_pretrained(found.out)
    for name, weights in before.state_dict().items():
        assert torch.equal(weights, after.state_dict()[name]) is ("encoder.layer.1." not in name), name


def test_train_late_refuses_invalid_data_and_options(
    plain: Path, trained: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, data = tmp_path / "out", write(tmp_path / "tools", "train", "test")

    def refused(*arguments: str, data: Path = data, name: Path = plain, out: Path = out) -> str:
        given = ["train", "late", str(data), "--backbone", str(name), "--out", str(out), *arguments]
        assert command(given) == 1
        return capsys.readouterr().err

    assert "has no split [train] to learn from: it has test" in refused(data=write(tmp_path / "other", "test"))
    late = late_model("native", tmp_path / "colbert")
    assert "colbert] is a late-interaction model (model_type [MultiVectorEncoder]" in refused(name=late)
    cross = backbone(tmp_path / "cross", BertForSequenceClassification)
    assert "cross] is a cross-encoder" in refused(name=cross)
    (tmp_path / "empty").mkdir()
    assert "empty] is no retrieval model" in refused(name=tmp_path / "empty")
    without = Path(shutil.copytree(plain, tmp_path / "without"))
    (without / "tokenizer.json").unlink()
    assert "without] has no tokenizer.json" in refused(name=without)
    assert "backbone [e5-small] has an ONNX model only" in refused(name=Path("e5-small"))
    assert "[--dimensions] is 64 and the backbone's token vectors have 32" in refused("--dimensions", "64")
    lengths = refused("--dimensions", "8", "--document-length", "65")
    assert "[--document-length] is 65 and the backbone has 64 positions" in lengths
    layers = refused("--dimensions", "8", "--layers", "3", "--query-length", "32")
    assert "[--layers] is 3 and the backbone has 2" in layers
    assert "unknown metric [map@3]: take one of ndcg@k" in refused("--metric", "map@3")
    assert not out.exists()
    assert "holds a trained encoder already" in refused("--epochs", "5", out=trained["out"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "is no empty folder (it holds mine.txt)" in refused(out=tmp_path / "full")


def test_layers_are_counted_from_the_last(plain: Path) -> None:
    model: MultiVectorEncoder = build_model(plain, SHAPE, TEXTS)
    train_last_layers(model, 2)
    frozen = {name for name, weights in model.named_parameters() if not weights.requires_grad}
    assert frozen
    assert all("encoder.layer" not in name and "linear" not in name for name in frozen)
