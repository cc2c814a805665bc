"""Programs that a search found and a person promoted: a folder of them, read when the gateway starts.

Two files a program: ``NAME.py``, its source, and ``NAME.json``, what is known of it. The folder comes from the settings
and is read once, so no request can bring code in. A source is checked again (:mod:`.source`) and must be the one that
was promoted, by its hash. Where it runs is the caller's choice: the gateway has processes for it (es_ttc.sandbox).
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from es_ttc.errors import ConfigurationError
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.programs.catalogue import CATALOGUE, Entry
from es_ttc.rescorers.programs.interface import Program
from es_ttc.rescorers.programs.rescorers import ProgramParams, ProgramRescorer
from es_ttc.rescorers.programs.source import Refused, compiled
from es_ttc.vectors.chunks import GRANULARITIES

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
TEXTS: Final = "texts"
SERVED: Final = frozenset((*GRANULARITIES, "topic", "reversed", TEXTS))
"""What an index can give a program beside whole documents."""
LONGEST_SECONDS: Final = 10.0
"""Of one window, in this process: a program that loops for ever gives its thread back then."""

Runner = Callable[[str], Program]
"""Makes a function of a source, and says where it runs. It raises :class:`Refused` for a text that breaks a rule."""

_NEEDING_CHUNKS = SERVED - {"reversed"}


class Manifest(BaseModel):
    """What is known of a promoted program.

    Attributes:
        name: By which requests name it.
        sha256: Of its source.
        readings: What it reads of an index beside whole documents.
        passes: Texts that it encodes for every query; 0 where the index holds all that it needs.
        cost: Its cost ratio c, as measured.
        calibrated: Whether it takes statistics along queries from a sample of the index's own.
        report: Where it comes from and what it gained, for people.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    readings: tuple[str, ...]
    passes: float
    cost: float
    calibrated: bool = False
    report: dict[str, Any]


class PromotedRescorer(ProgramRescorer):
    """A promoted program over the window, as any other; its lexical channels are those that it was measured with."""

    readings: frozenset[str] = frozenset()

    def needs(self, params: ProgramParams) -> frozenset[Feature]:  # noqa: ARG002
        """The pooled vectors; chunks, the encoder and a sample of queries as the program reads them."""
        needed = {Feature.POOLED}
        if self.readings & _NEEDING_CHUNKS:
            needed.add(Feature.CHUNKS)
        if self.entry.passes:
            needed.add(Feature.ENCODER)
        if self.entry.calibrated:
            needed.add(Feature.CALIBRATION)
        return frozenset(needed)


_served: dict[str, PromotedRescorer] = {}


def promoted() -> Mapping[str, PromotedRescorer]:
    """Return the promoted programs that this process serves, by name."""
    return MappingProxyType(_served)


def in_this_process(source: str) -> Program:
    """Return a program that runs on the caller's own thread; its loops end, a single call that never does is not ended.

    Raises:
        Refused: Its text breaks a rule.
    """
    return compiled(source, seconds=LONGEST_SECONDS)


def serve_from(folder: Path | None, runner: Runner = in_this_process) -> None:
    """Serve the programs of a folder, and no others; none where there is no folder.

    Args:
        folder: The programs.
        runner: Where they run.

    Raises:
        ConfigurationError: A program is not what was promoted; the message names the file.
    """
    found = {} if folder is None else read(folder, runner)
    _served.clear()
    _served.update(found)


def read(folder: Path, runner: Runner = in_this_process) -> dict[str, PromotedRescorer]:
    """Read a folder of promoted programs.

    Args:
        folder: The programs.
        runner: Where they run.

    Raises:
        ConfigurationError: See :func:`serve_from`.
    """
    return {path.stem: _rescorer(path, runner) for path in sorted(folder.glob("*.json"))}


def digest(source: str) -> str:
    """Return the hash by which a source is known."""
    return hashlib.sha256(source.encode()).hexdigest()


def check_name(name: str) -> None:
    """Refuse a name that a program cannot be served by.

    Raises:
        ConfigurationError: It is malformed, or one of the paper's programs has it.
    """
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"[{name}] cannot be a program's name: lower-case letters, digits, - and _, 63 at most"
        )
    if name in CATALOGUE:
        raise ConfigurationError(f"[{name}] is one of the paper's programs: give this one another name")


def _rescorer(path: Path, runner: Runner) -> PromotedRescorer:
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
        source = path.with_suffix(".py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"promoted program [{path.with_suffix('.py')}] cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigurationError(f"[{path}] is no file of `es-ttc discover promote`: {first['msg']}") from error
    check_name(manifest.name)
    if manifest.name != path.stem:
        raise ConfigurationError(f"[{path}] is about [{manifest.name}]: name the files so, or promote it again")
    if digest(source) != manifest.sha256:
        raise ConfigurationError(f"[{path.with_suffix('.py')}] is not what was promoted: promote it again")
    unknown = set(manifest.readings) - SERVED
    if unknown:
        raise ConfigurationError(f"[{path}] reads [{min(unknown)}], which no index holds")
    try:
        program = runner(source)
    except Refused as refused:
        raise ConfigurationError(f"promoted program [{path.with_suffix('.py')}] may not run: {refused}") from refused
    readings = frozenset(manifest.readings)
    entry = Entry(
        manifest.name,
        manifest.name,
        "",
        program,
        manifest.cost,
        passes=-int(-manifest.passes // 1),
        reads=tuple(name for name in GRANULARITIES if name in readings),
        lexical=False,
        calibrated=manifest.calibrated,
    )
    members: dict[str, Any] = {
        "name": manifest.name,
        "entry": entry,
        "Params": ProgramParams,
        "granularities": entry.reads,
        "readings": readings,
        "__doc__": f"A promoted program, c = {manifest.cost:g}.",
        "__module__": __name__,
    }
    made: PromotedRescorer = type("Promoted", (PromotedRescorer,), members)()
    return made
