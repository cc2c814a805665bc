"""Promoted programs: a folder of ``NAME.py`` and ``NAME.json`` (its manifest), read when the gateway starts.

No request can add code. A source is checked again (:mod:`.source`) and must have the hash that was promoted. The
caller decides where it runs: the gateway uses separate processes (es_ttc.sandbox).
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from es_ttc.common.configuration_files import read_bytes, read_text
from es_ttc.errors import ConfigurationError
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.programs.catalogue import CATALOGUE, REVERSED, TEXTS, TOPIC, Entry, Reading
from es_ttc.rescorers.programs.interface import Program
from es_ttc.rescorers.programs.rescorers import ProgramParams, ProgramRescorer
from es_ttc.rescorers.programs.source import Refused, compiled
from es_ttc.vectors.chunks import GRANULARITIES

PROGRAM_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
SERVED_AS: Final = "programs"  # key of the programs among what parameters may name; see `parse_params`
_READINGS: tuple[Reading, ...] = (*GRANULARITIES, TOPIC, REVERSED, TEXTS)
SERVED_READINGS: Final[frozenset[str]] = frozenset(_READINGS)
"""Features that an index can store for a program, in addition to whole documents."""
MAX_SECONDS: Final = 10.0  # time limit of one window, in this process: an endless program then releases its thread

Runner = Callable[[str], Program]  # runs a source; raises `Refused` for one that violates a rule


class Manifest(BaseModel):
    """The manifest of a promoted program; `readings` are features, `passes` the texts encoded for a query."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    readings: tuple[str, ...]
    passes: float
    cost: float
    calibrated: bool = False
    report: dict[str, Any]


class PromotedRescorer(ProgramRescorer):
    """A promoted program over the window, with the lexical channels with which it was measured."""

    def needs(self, params: ProgramParams) -> frozenset[Feature]:
        """What the program reads; a calibration too, without which it scores otherwise than it was measured."""
        return super().needs(params) | (frozenset({Feature.CALIBRATION}) if self.entry.calibrated else frozenset())


def in_this_process(source: str) -> Program:
    """Return a program that runs in the caller's thread; its loops end in time, a single endless call does not."""
    return compiled(source, seconds=MAX_SECONDS)


def read_programs(folder: Path | None, runner: Runner = in_this_process) -> dict[str, dict[str, PromotedRescorer]]:
    """Return the programs of a folder by name, as :data:`SERVED_AS` of what is served; none if there is no folder."""
    paths = [] if folder is None else sorted(folder.glob("*.json"))
    return {SERVED_AS: {path.stem: _rescorer(path, runner) for path in paths}}


def program_digest(source: str) -> str:
    """Return the hash of a source."""
    return hashlib.sha256(source.encode()).hexdigest()


def check_program_name(name: str) -> None:
    """Raise an error for an invalid name of a program."""
    if not PROGRAM_NAME.fullmatch(name):
        raise ConfigurationError(
            f"[{name}] cannot be a program's name: lower-case letters, digits, - and _, 63 at most"
        )
    if name in CATALOGUE:
        raise ConfigurationError(f"[{name}] is one of the paper's programs: give this one another name")


def _rescorer(path: Path, runner: Runner) -> PromotedRescorer:
    try:
        manifest = Manifest.model_validate_json(read_bytes(path))
        source = read_text(path.with_suffix(".py"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigurationError(f"[{path}] is no file of `es-ttc discover promote`: {first['msg']}") from error
    check_program_name(manifest.name)
    if manifest.name != path.stem:
        raise ConfigurationError(f"[{path}] is about [{manifest.name}]: name the files so, or promote it again")
    if program_digest(source) != manifest.sha256:
        raise ConfigurationError(f"[{path.with_suffix('.py')}] is not what was promoted: promote it again")
    unknown = set(manifest.readings) - SERVED_READINGS
    if unknown:
        raise ConfigurationError(f"[{path}] reads [{min(unknown)}], which no index holds")
    try:
        program = runner(source)
    except Refused as refused:
        raise ConfigurationError(f"promoted program [{path.with_suffix('.py')}] may not run: {refused}") from refused
    entry = Entry(
        manifest.name,
        manifest.name,
        "",
        program,
        manifest.cost,
        passes=-int(-manifest.passes // 1),
        reads=tuple(name for name in _READINGS if name in manifest.readings),
        lexical=False,
        calibrated=manifest.calibrated,
    )
    members: dict[str, Any] = {
        "name": manifest.name,
        "entry": entry,
        "Params": ProgramParams,
        "granularities": entry.granularities,
        "__doc__": f"A promoted program, c = {manifest.cost:g}.",
        "__module__": __name__,
    }
    made: PromotedRescorer = type("Promoted", (PromotedRescorer,), members)()
    return made
