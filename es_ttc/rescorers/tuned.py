"""Parameters that `es-ttc tune` or `es-ttc calibrate relevance` chose, as a file of defaults."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from es_ttc.common import entry_points
from es_ttc.common.configuration_files import read_bytes
from es_ttc.common.validation import first_error
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.rescorers.base import Params
from es_ttc.rescorers.registry import load, parse_params
from es_ttc.rescorers.relevance import METHOD as RELEVANCE
from es_ttc.rescorers.relevance import Calibration


class Tuned(BaseModel):
    """One method's parameters as a request writes them, and on what they were chosen; the file has further figures."""

    model_config = ConfigDict(frozen=True)

    method: str
    params: dict[str, Any]
    data: str
    split: str
    encoder: str | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `es-ttc tune` wrote."""
        try:
            return cls.model_validate_json(read_bytes(path))
        except ValidationError as error:
            raise ConfigurationError(
                f"[{path}] is no file of tuned parameters ({first_error(error)}): write one with "
                "`es-ttc tune ... --out FILE`"
            ) from error


class MethodWithParams(Protocol):
    """A method with parameters of its own."""

    name: ClassVar[str]
    Params: ClassVar[type[Params]]


class TunedDefaults:
    """What stands in place of the methods' own defaults; `relevance` has calibrations by name of an index."""

    def __init__(
        self,
        params: Mapping[str, Mapping[str, Any]],
        served: Mapping[str, Any] | None = None,
        relevance: Mapping[str, Calibration] | None = None,
    ) -> None:
        self._params = params
        self._served = served
        self.relevance = relevance or {}

    @classmethod
    def read(cls, files: Iterable[Path], served: Mapping[str, Any] | None = None) -> Self:
        """Read files that `es-ttc tune` and `es-ttc calibrate relevance` wrote."""
        found: dict[str, dict[str, Any]] = {}
        relevance: dict[str, Calibration] = {}
        for path in files:
            tuned = Tuned.read(path)
            if tuned.method == RELEVANCE:
                try:
                    calibration = Calibration.model_validate({**tuned.params, "encoder": tuned.encoder})
                except ValidationError as error:
                    raise ConfigurationError(
                        f"[{path}] is no calibration of relevance ({first_error(error)}): write one with `es-ttc "
                        "calibrate relevance ... --out FILE`"
                    ) from error
                if known := [name for name in calibration.names if name in relevance]:
                    raise ConfigurationError(f"[{path}] is a second file for index [{known[0]}]: give one an index")
                relevance |= dict.fromkeys(calibration.names, calibration)
                continue
            if tuned.method in found:
                raise ConfigurationError(f"[{path}] is a second file for method [{tuned.method}]: give one a method")
            try:
                parse_params(load(tuned.method), tuned.params, served)
            except InvalidRequest as error:
                raise ConfigurationError(f"tuned parameters [{path}] do not fit: {error}") from error
            found[tuned.method] = tuned.params
        blend = found.get("blend", {}).get("signals")
        if other := [name for name, one in relevance.items() if one.blend != blend]:
            raise ConfigurationError(
                f"the relevance of [{other[0]}] was fitted to other weights of [blend] than these files have: fit it "
                f"again with `es-ttc calibrate relevance {other[0]} --tuned FILE`, FILE being that of [blend], if any"
            )
        return cls(found, served, relevance)

    def parse(self, method: MethodWithParams, raw: Mapping[str, Any]) -> tuple[Params, dict[str, Any]]:
        """Return the parameters of a request to a rescorer or retriever, and those of them that are tuned values.

        The request wins; it alone counts where the tuned values do not fit it, or the method is another of that name.
        """
        params = entry_points.parse_params(method.Params, raw, method.name, self._served)
        tuned = {name: value for name, value in self._params.get(method.name, {}).items() if name not in raw}
        if not tuned:
            return params, {}
        try:
            return entry_points.parse_params(method.Params, {**tuned, **raw}, method.name, self._served), tuned
        except InvalidRequest:
            return params, {}


def as_json(tuned: Mapping[str, Any]) -> bytes:
    """Return a file's content as it is written."""
    return orjson.dumps(tuned, option=orjson.OPT_INDENT_2) + b"\n"
