"""Files of tuned parameters: read, refused, and put in place of a request's missing ones."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.rescorers import registry
from es_ttc.rescorers.tuned import Tuned, TunedDefaults, as_json

RECORD = {"method": "nnn", "params": {"l1": 0.1, "l2": 1.0}, "data": "mine", "split": "train", "encoder": None}


def written(folder: Path, name: str = "nnn.json", **changes: Any) -> Path:
    path = folder / name
    path.write_bytes(as_json({**RECORD, "further": [1], **changes}))
    return path


def test_a_file_survives_a_round_trip(tmp_path: Path) -> None:
    assert Tuned.read(written(tmp_path)).model_dump() == RECORD


def test_parameters_of_the_request_precede_tuned_ones(tmp_path: Path) -> None:
    defaults = TunedDefaults.read([written(tmp_path)])
    nnn, mmr = registry.load("nnn"), registry.load("mmr")
    params, tuned = defaults.parse(nnn, {})
    assert params == registry.parse_params(nnn, {"l1": 0.1, "l2": 1.0})
    assert tuned == {"l1": 0.1, "l2": 1.0}
    params, tuned = defaults.parse(nnn, {"l1": 0.3})
    assert params == registry.parse_params(nnn, {"l1": 0.3, "l2": 1.0})
    assert tuned == {"l2": 1.0}
    params, tuned = defaults.parse(nnn, {"documents": 5})  # which chooses l1 by itself
    assert params == registry.parse_params(nnn, {"documents": 5})
    assert tuned == {}
    assert defaults.parse(mmr, {}) == (registry.parse_params(mmr, {}), {})
    with pytest.raises(InvalidRequest, match=r"\[l1\].*\[nnn\]"):
        defaults.parse(nnn, {"l1": -1})


def test_an_invalid_file_of_tuned_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\] cannot be read: No such file"):
        Tuned.read(tmp_path / "nowhere")
    for content in (b"{", b"[]", orjson.dumps({"method": "nnn"})):
        path = tmp_path / "odd"
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match="es-ttc tune"):
            Tuned.read(path)
    with pytest.raises(ConfigurationError, match=r"\[nnn\]"):
        TunedDefaults.read([written(tmp_path), written(tmp_path, "b")])
    for changes, message in (({"params": {"l1": 7}}, r"\[l1\]"), ({"method": "bm2"}, "unknown method")):
        with pytest.raises(ConfigurationError, match=rf"do not fit: .*{message}"):
            TunedDefaults.read([written(tmp_path, **changes)])


def test_relevance_is_of_the_weights_that_are_served(tmp_path: Path) -> None:
    model = {"intercept": -2.0, "weights": {"dense": 3.0}}
    params = {"names": ["shop"], "model": model, "few": model, "queries": 50, "auc": 0.8, "error": 0.02}
    file = {"method": "relevance", "encoder": "minilm"}
    blend = written(tmp_path, "blend.json", method="blend", params={"signals": {"dense": 1.0}})
    default, other = (
        written(tmp_path, name, params={**params, "blend": signals}, **file)
        for name, signals in (("default.json", None), ("other.json", {"dense": 1.0}))
    )
    assert TunedDefaults.read([default]).relevance["shop"].encoder == "minilm"
    assert TunedDefaults.read([other, blend]).relevance["shop"].blend == {"dense": 1.0}
    for files, message in (
        ([default, blend], r"\[shop\].*calibrate relevance"),
        ([other], r"\[shop\].*calibrate relevance"),
        ([default, other], r"second file for index \[shop\]"),
        ([written(tmp_path, "bad.json", params={**params, "model": {}}, **file)], r"bad.json\].*\[model.intercept\]"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            TunedDefaults.read(files)
