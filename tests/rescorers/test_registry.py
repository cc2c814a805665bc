import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Rescorer
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams, SpectralRescorer

Install = Callable[..., None]

GOOD = """
from es_ttc.rescorers.base import Feature, Params


class NoParams(Params):
    pass


class Mine:
    name = "mine"
    Params = NoParams
    wants = frozenset()
    similarity = False

    def needs(self, params):
        return frozenset({Feature.FIRST_PASS})

    def score(self, query, window, params):
        return window.first_pass

    def detail(self, query, window, params):
        return [{} for _ in range(len(window))]
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package with one entry point, as pip would: its module and its metadata on the path."""
    before = set(sys.modules)

    def put(name: str, source: str, *, attribute: str = "Mine", package: str = "others") -> None:
        folder = tmp_path / package
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(
            f"[{registry.GROUP}]\n{name} = {package}_module:{attribute}\n", encoding="utf-8"
        )
        (folder / f"{package}_module.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(str(folder))
        registry.load.cache_clear()

    yield put
    registry.load.cache_clear()
    for module in set(sys.modules) - before:
        if module.endswith("_module"):
            del sys.modules[module]


def test_the_built_in_rescorers_are_all_there() -> None:
    assert set(registry.names()) >= {"dense", "maxsim", "spectral"}
    assert registry.problems() == {}
    for name in registry.names():
        assert isinstance(registry.load(name), Rescorer)
    assert registry.load("spectral") is registry.load("spectral")


def test_every_parameter_is_described() -> None:
    for name in registry.names():
        for field, info in registry.load(name).Params.model_fields.items():
            assert info.description, f"{name}.{field}"


def test_anyones_package_adds_one(install: Install) -> None:
    install("mine", GOOD)
    assert "mine" in registry.names()
    assert registry.load("mine").name == "mine"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import a_package_that_is_not_there", "ModuleNotFoundError"),
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        (GOOD.replace("class Mine:", "class Other:"), "AttributeError"),
        (GOOD + "\n    def __init__(self, argument):\n        pass\n", "TypeError"),
        (GOOD.replace('name = "mine"', 'name = "yours"'), "[name] must be [mine]"),
        (GOOD.replace('    name = "mine"\n', ""), "[name] is missing"),
        (GOOD.replace("Params = NoParams", "Params = dict"), "[Params] must be a subclass of Params"),
        (GOOD.replace("    pass\n", "    k: int\n", 1), "[Params] must be a subclass of Params in which every field"),
        (GOOD.replace("wants = frozenset()", "wants = {'tokens'}"), "[wants] must be"),
        (GOOD.replace("similarity = False", "similarity = 'no'"), "[similarity] must be"),
        (GOOD.replace("def score", "def scores"), "[score] is missing"),
        (GOOD.replace("def needs", "def need"), "[needs] is missing"),
        (GOOD.replace("def detail", "def details"), "[detail] is missing"),
    ],
)
def test_a_broken_one_is_reported_by_name_and_breaks_no_other(install: Install, source: str, problem: str) -> None:
    install("mine", source)
    with pytest.raises(ConfigurationError, match=re.escape(problem)) as raised:
        registry.load("mine")
    assert "rescorer [mine]" in str(raised.value)
    assert "others_module:Mine" in str(raised.value)
    assert registry.load("spectral").name == "spectral"
    assert list(registry.problems()) == ["mine"]


def test_a_name_in_capitals_is_refused(install: Install) -> None:
    install("Mine", GOOD.replace('name = "mine"', 'name = "Mine"'))
    with pytest.raises(ConfigurationError, match="lower case"):
        registry.load("Mine")


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("spectral", GOOD)
    with pytest.raises(ConfigurationError, match="several packages"):
        registry.load("spectral")


def parse(raw: Any) -> SpectralParams:
    params = registry.parse_params(SpectralRescorer(), raw)
    assert isinstance(params, SpectralParams)
    return params


def test_defaults_and_values_as_json_gives_them() -> None:
    assert parse({}).scales == DEFAULT_SCALES
    params = parse({"scales": [7, "mean", 1, 7.5, 7], "aggregation": "top_mean", "top_m": 5, "roles": "mean"})
    assert params.scales == (1.0, 7.0, 7.5, math.inf)
    assert (params.aggregation, params.top_m, params.roles) == ("top_mean", 5, "mean")


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("spectral", {}),
        ("spectral", {"scales": [1, "mean"]}),
        ("spectral", {"aggregation": "percentile", "percentile": 50}),
        ("nnn", {"l1": 0.0, "l2": 3.0}),
        ("nnn", {"documents": 5, "l2": 0.5}),
        ("mmr", {"lambda": 0.3}),
    ],
)
def test_parameters_survive_json(name: str, raw: dict[str, Any]) -> None:
    method = registry.load(name)
    params = registry.parse_params(method, raw)
    assert registry.parse_params(method, params.model_dump(mode="json")) == params


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from([*SpectralParams.model_fields, "other"])


@given(st.dictionaries(keys, json_values, max_size=4))
def test_any_json_gives_parameters_or_a_clear_refusal(raw: dict[str, Any]) -> None:
    refusal = ""
    try:
        params = parse(raw)
    except InvalidRequest as error:
        refusal = str(error)
    if refusal:
        assert "[spectral]" in refusal
        return
    assert list(params.scales) == sorted(set(params.scales))
    assert all(scale >= 1 for scale in params.scales)
