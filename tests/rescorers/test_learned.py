"""Models of trees: evaluated as LightGBM does, read from files, and served as a method."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.ranking.lambdamart import exported
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Feature, FieldRescorer, PartialRescorer
from es_ttc.rescorers.blend.rescorer import BlendParams, BlendRescorer
from es_ttc.rescorers.learned.fields import NumericField, as_number, parse_field
from es_ttc.rescorers.learned.model import RankingModel, read_model, read_models
from es_ttc.rescorers.learned.rescorer import LearnedParams, LearnedRescorer
from es_ttc.rescorers.learned.trees import Trees
from tests.rescorers.test_blend import example

learned = LearnedRescorer()
SIGNALS = ("lexical", "dense", "spectral", "late_interaction")


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**31),
    holes=st.sampled_from([0.0, 0.1, 0.6]),
    zeros=st.sampled_from([0.0, 0.3]),
    missing=st.sampled_from([{}, {"use_missing": False}, {"zero_as_missing": True}]),
    leaves=st.integers(2, 31),
)
def test_trees_are_evaluated_as_lightgbm_does(
    seed: int, holes: float, zeros: float, missing: dict[str, Any], leaves: int
) -> None:
    random = np.random.default_rng(seed)

    def rows(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        values = random.standard_normal((count, 3))
        values[random.random(values.shape) < zeros] = 0
        values[random.random(values.shape) < holes] = np.nan
        return values

    train, fresh = rows(300), np.concatenate([rows(60), [[np.nan] * 3, [0.0] * 3, [1e-36, -1e-36, np.inf]]])
    target = np.nan_to_num(train[:, 0]) + np.isnan(train[:, 1]) + 0.1 * random.standard_normal(len(train))
    params = {"num_leaves": leaves, "min_data_in_leaf": 3, "verbose": -1, "num_threads": 1, "seed": seed, **missing}
    booster = lightgbm.train(params, lightgbm.Dataset(train, target), 7)
    trees = exported(booster)
    assert trees.problem(3) is None
    for given_rows in (train, fresh):
        expected = np.asarray(booster.predict(given_rows, raw_score=True), np.float64)
        np.testing.assert_allclose(trees.predict(given_rows), expected, atol=1e-12)


def stump(**changed: Any) -> dict[str, Any]:
    """A model whose one tree lifts documents that late interaction puts above the mean."""
    trees = {
        "roots": [0],
        "feature": [3],
        "threshold": [0.0],
        "left": [-1],
        "right": [-2],
        "missing": [2],
        "default_left": [True],
        "values": [-5.0, 5.0],
    }
    return {"format": 1, "signals": SIGNALS, "blend": 1.0, "trees": {**trees, **changed}, "trained": {"data": "bees"}}


def written(folder: Path, name: str, model: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_bytes(orjson.dumps(model))
    return path


def params_of(folder: Path, **params: Any) -> LearnedParams:
    """Parameters of a request to a gateway that serves a folder."""
    return LearnedParams.model_validate(params, context=read_models(folder))


def test_scores_are_blends_mean_and_the_trees(tmp_path: Path) -> None:
    written(tmp_path, "mine", stump())
    params = params_of(tmp_path)
    query, window = example(12)
    scores = learned.score(query, window, params)
    blend = BlendRescorer().score(query, window, BlendParams()).astype(np.float64)
    late = np.array([one["signals"]["late_interaction"]["score"] for one in learned.detail(query, window, params)])
    lifted = np.where(late > late.mean(), 5.0, -5.0)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-(np.log(blend / (1 - blend)) + lifted))), atol=1e-5)
    assert learned.summary(query, window, params) == {"model": "mine", "signals": list(SIGNALS)}


def test_missing_signals_go_the_trees_default_way(tmp_path: Path) -> None:
    written(tmp_path, "mine", stump())
    params = params_of(tmp_path)
    query, window = example(12)
    without = replace(window, tokens=None, norms=None)
    assert (learned.score(query, without, params) < 0.5).all()
    assert learned.summary(query, without, params)["missing_signals"] == ["spectral", "late_interaction"]
    known = np.arange(12) != 3
    partly = replace(window, present={Feature.POOLED: known, Feature.TOKENS: known})
    assert learned.score(query, partly, params)[3] < 0.5
    assert learned.summary(query, partly, params)["without_features"] == 1


def test_learned_needs_the_features_of_its_model(tmp_path: Path) -> None:
    written(tmp_path, "words", {**stump(feature=[1]), "signals": ["lexical", "dense"]})
    params = params_of(tmp_path)
    assert isinstance(registry.load("learned"), PartialRescorer)
    assert learned.needs(params) == {Feature.FIRST_PASS, Feature.POOLED}
    assert learned.takes(params) == set()


def test_models_are_named_and_never_paths(tmp_path: Path) -> None:
    query, window = example()
    with pytest.raises(InvalidRequest, match=r"\[learned\].*`es-ttc train rank`"):
        learned.score(query, window, LearnedParams())
    with pytest.raises(InvalidRequest, match=r"\[mine\].*`es-ttc train rank`"):
        registry.parse_params(learned, {"model": "mine"})
    written(tmp_path, "mine", stump())
    written(tmp_path, "other", stump())
    served = read_models(tmp_path)
    for wrong, message in (
        ({}, r"\[model\] is missing: this gateway serves mine, other"),
        ({"model": "mien"}, r"unknown model \[mien\]: did you mean \[mine\]"),
        ({"model": "../mine"}, r"unknown model \[../mine\]"),
        ({"model": str(tmp_path / "mine.json")}, "unknown model"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            registry.parse_params(learned, wrong, served)
    chosen = registry.parse_params(learned, {"model": "other"}, served)
    assert isinstance(chosen, LearnedParams)
    assert chosen.chosen.name == "other"


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, "mine", stump()))
    (tmp_path / "copy.json").write_bytes(model.content())
    again = read_model(tmp_path / "copy.json")
    assert isinstance(again, RankingModel)
    assert again.content() == model.content()


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("mine", stump(feature=[2**40]), "is no ranking model"),
        ("mine", [], "write one with `es-ttc train rank`"),
    ],
)
def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path, name: str, model: Any, message: str) -> None:
    path = written(tmp_path / "models", name, model)
    with pytest.raises(ConfigurationError, match=message) as caught:
        read_models(path.parent)
    assert path.name in str(caught.value)


def test_numeric_fields_follow_the_signals(tmp_path: Path) -> None:
    fields = [{"name": "price"}, {"name": "stars", "missing": 3.0}]
    written(tmp_path, "mine", {**stump(feature=[5], threshold=[2.0]), "fields": fields})
    params = params_of(tmp_path)
    assert isinstance(registry.load("learned"), FieldRescorer)
    assert learned.fields(params) == ("price", "stars")
    query, window = example(12)
    stars = np.where(np.arange(12) < 4, np.nan, np.arange(12) / 4)
    scores = learned.score(query, replace(window, numbers={"stars": stars}), params)
    lifted = np.where(np.isnan(stars), 3.0, stars) > 2
    assert ((scores > 0.5) == lifted).all()
    detail = learned.detail(query, replace(window, numbers={"stars": stars}), params)
    assert [one["fields"]["stars"] for one in detail] == [None] * 4 + stars[4:].tolist()
    assert {one["fields"]["price"] for one in detail} == {None}
    told = learned.summary(query, replace(window, numbers={"stars": stars}), params)
    assert (told["fields"], told["without_field"]) == (["price", "stars"], {"price": 12, "stars": 4})
    model = read_model(tmp_path / "mine.json")
    (tmp_path / "copy.json").write_bytes(model.content())
    assert read_model(tmp_path / "copy.json").fields == model.fields == (
        NumericField("price"), NumericField("stars", 3.0)
    )  # fmt: skip


PATHS = st.from_regex(r"[a-z][a-z0-9_]{0,8}(\.[a-z][a-z0-9_]{0,8}){0,2}", fullmatch=True).filter(
    lambda name: name.partition(".")[0] != "ttc"
)


@given(name=PATHS, missing=st.none() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_field_is_what_its_text_says(name: str, missing: float | None) -> None:
    text = name if missing is None else f"{name}:missing={missing!r}"
    assert parse_field(text) == NumericField(name, missing)


@given(st.lists(st.integers(-(2**60), 2**60) | st.floats(-1e300, 1e300), max_size=4))
def test_the_least_of_several_values_counts(values: list[float]) -> None:
    assert as_number(values) == (min(map(float, values)) if values else None)
    assert as_number([str(value) for value in values]) == as_number(values)


@pytest.mark.parametrize("value", [True, "cheap", {"value": 1}, float("inf"), "NaN"])
def test_as_number_refuses_other_values(value: Any) -> None:
    with pytest.raises(ValueError, match=r"is no|could not convert"):
        as_number(value)


def test_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\[ranking_models\] names"):
        read_models(tmp_path / "none")


def test_no_trees_add_nothing() -> None:
    empty = np.array([], np.int32)
    nothing = Trees(empty, empty, np.array([]), empty, empty, empty, np.array([], np.bool_), np.array([]))
    assert nothing.problem(2) is None
    assert nothing.predict(np.zeros((3, 2))).tolist() == [0, 0, 0]
