"""Models of `es-ttc train rank`: a JSON file each, in a folder of the settings that is read when a gateway starts.

A request names a model; it never gives a path, so no request can add one. The file holds numbers and names only.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from es_ttc.common.configuration_files import read_bytes
from es_ttc.common.validation import first_error
from es_ttc.errors import ConfigurationError
from es_ttc.rescorers.blend.signals import SignalName
from es_ttc.rescorers.learned.fields import NumericField, fields_problem
from es_ttc.rescorers.learned.trees import Trees

MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
RANKING_MODELS = "ranking_models"  # key of the models among what parameters may name; see `parse_params`
_MAX_BYTES = 64 * 2**20  # bytes of a file; a model has some ten thousand


class StoredTrees(BaseModel):
    """The lists of :class:`Trees`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    roots: list[int]
    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    missing: list[int]
    default_left: list[bool]
    values: list[float]

    def arrays(self) -> Trees:
        """Return the trees as arrays."""
        kinds = {"threshold": np.float64, "values": np.float64, "default_left": np.bool_}
        arrays: dict[str, Any] = {
            name: np.array(values, kinds.get(name, np.int32)) for name, values in self.model_dump().items()
        }
        return Trees(**arrays)


class StoredField(BaseModel):
    """The parts of :class:`NumericField`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    missing: float | None = Field(None, allow_inf_nan=False)


class ModelFile(BaseModel):
    """A model as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    # The signals that the trees read, one a feature: z-scores over the window, NaN where one is missing
    signals: tuple[SignalName, ...] = Field(min_length=1)
    # The numeric fields of documents that they read after the signals, one a feature: the values themselves
    fields: tuple[StoredField, ...] = ()
    # Weight of blend's mean over these signals, to which the trees' values are added
    blend: float = Field(ge=0, allow_inf_nan=False)
    trees: StoredTrees
    trained: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RankingModel:
    """A model that is served."""

    name: str
    signals: tuple[SignalName, ...]
    blend: float
    trees: Trees
    trained: Mapping[str, Any]
    fields: tuple[NumericField, ...] = ()

    def content(self) -> bytes:
        """Return the file's content."""
        lists = {field.name: getattr(self.trees, field.name).tolist() for field in fields(self.trees)}
        return orjson.dumps(
            {
                "format": 1,
                "signals": self.signals,
                **({"fields": [asdict(field) for field in self.fields]} if self.fields else {}),
                "blend": self.blend,
                "trees": lists,
                "trained": dict(self.trained),
            }
        )


def read_models(folder: Path | None) -> dict[str, dict[str, RankingModel]]:
    """Return the models of a folder by name, below :data:`RANKING_MODELS`; none if there is no folder."""
    if folder is None:
        return {RANKING_MODELS: {}}
    if not folder.is_dir():
        raise ConfigurationError(f"[ranking_models] names [{folder}], which is no folder")
    return {RANKING_MODELS: {path.stem: read_model(path) for path in sorted(folder.glob("*.json"))}}


def check_model_name(path: Path) -> None:
    """Refuse a file whose name is no name of a model."""
    if path.suffix != ".json" or not MODEL_NAME.fullmatch(path.stem):
        raise ConfigurationError(
            f"[{path.name}] cannot be a model's file: write NAME.json, NAME of lower-case letters, digits, -, _ and ."
        )


def read_model(path: Path) -> RankingModel:
    """Read a model."""
    check_model_name(path)
    try:
        stored = ModelFile.model_validate_json(read_bytes(path, _MAX_BYTES))
        trees = stored.trees.arrays()
    except ValidationError as error:
        raise ConfigurationError(
            f"[{path}] is no ranking model ({first_error(error)}): write one with `es-ttc train rank`"
        ) from error
    except OverflowError as error:
        raise ConfigurationError(f"[{path}] is no ranking model: {error}") from error
    numeric = tuple(NumericField(field.name, field.missing) for field in stored.fields)
    problem = trees.problem(len(stored.signals) + len(numeric))
    if problem is None and len(set(stored.signals)) < len(stored.signals):
        problem = "a signal is named twice"
    if problem is None and (of_fields := fields_problem(numeric)) is not None:
        problem = f"[fields] {of_fields}"
    if problem is not None:
        raise ConfigurationError(f"[{path}] is no ranking model: {problem}")
    return RankingModel(path.stem, stored.signals, stored.blend, trees, stored.trained, numeric)
