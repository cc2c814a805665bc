"""The method `program`: a program by its name, or the best one within a budget."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from es_ttc.common.validation import did_you_mean
from es_ttc.rescorers.base import Feature, Params, Query, Rescorer, Window
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.programs.promoted import SERVED_AS, PromotedRescorer
from es_ttc.rescorers.programs.rescorers import Lexical, LexicalParams, ProgramParams, rescorer_of
from es_ttc.vectors.tokens import Float32


class Measured(NamedTuple):
    """One row of the measured table: cost ratio, and median difference from dense retrieval in nDCG@10."""

    name: str
    c: float
    delta: float


@cache
def measured() -> tuple[Measured, ...]:
    """Return the table that `python -m benchmarks.programs report --write` wrote."""
    content = orjson.loads(files(__package__).joinpath("measured.json").read_bytes())
    return tuple(Measured(one["name"], one["c"], one["delta"]) for one in content)


def within(budget: float | None) -> str | None:
    """Return the program of greatest measured gain within a budget; for None, that encodes nothing for a query."""
    known = [one for one in measured() if one.name in CATALOGUE]
    affordable = [one for one in known if (one.c <= budget if budget else not CATALOGUE[one.name].passes)]
    return max(affordable, key=lambda one: one.delta).name if affordable else None


class ChoiceParams(ProgramParams):
    """Parameters of the choice."""

    name: str | None = Field(
        None,
        description="Name of a program of the paper, in lower case, or of a promoted program. Default: chosen by "
        "`budget`.",
    )
    budget: float | None = Field(
        None,
        ge=1,
        description="Maximum cost ratio c (encoder calls at index and query time, relative to dense retrieval): "
        "selects the program with the greatest measured gain within it. Without `name` and `budget`: the one with the "
        "greatest gain among those that encode nothing at query time.",
    )

    lexical: Lexical | None = Field(
        None,
        description="The program's lexical channels, as in its own parameters. Default: `engine` with `name`, and "
        "`paper` for a choice from the table, which was measured so.",
    )

    _promoted: Mapping[str, PromotedRescorer] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _is_one(self, info: ValidationInfo) -> Self:
        self._promoted = (info.context or {}).get(SERVED_AS, {})
        if self.name is not None and self.budget is not None:
            raise ValueError("[name] and [budget] exclude each other: give one")
        if self.name is not None and self.name not in CATALOGUE and self.name not in self._promoted:
            known = (*CATALOGUE, *self._promoted)
            raise ValueError(f"unknown program [{self.name}]{did_you_mean(self.name, known)}")
        if self.budget is not None and within(self.budget) is None:
            least = min((one for one in measured() if one.name in CATALOGUE), key=lambda one: one.c)
            raise ValueError(f"no program costs {self.budget:g} or less: the cheapest is [{least.name}] at {least.c:g}")
        return self

    @property
    def channels(self) -> Lexical:
        """The lexical channels of the chosen program."""
        return self.lexical or ("paper" if self.name is None else "engine")

    @property
    def chosen(self) -> str:
        """The program's name."""
        return self.name or within(self.budget) or next(iter(CATALOGUE))

    @property
    def rescorer(self) -> Rescorer[Any]:
        """The program."""
        return self._promoted.get(self.chosen) or rescorer_of(self.chosen)


class ProgramChoice:
    """Run a program by its `name`, or the best one within a `budget` by the table in "Which program should I use"."""

    name: ClassVar[str] = "program"
    Params: ClassVar[type[Params]] = ChoiceParams
    wants: ClassVar[frozenset[Feature]] = frozenset({Feature.CALIBRATION})
    similarity: ClassVar[bool] = False

    def needs(self, params: ChoiceParams) -> frozenset[Feature]:
        """The features that the chosen program needs."""
        rescorer, own = _chosen(params)
        return rescorer.needs(own)

    def score(self, query: Query, window: Window, params: ChoiceParams) -> Float32:
        """Return the chosen program's scores, ``(k,)``."""
        rescorer, own = _chosen(params)
        return rescorer.score(query, window, own)

    def detail(self, query: Query, window: Window, params: ChoiceParams) -> list[dict[str, Any]]:
        """Return the chosen program's name and its detail."""
        rescorer, own = _chosen(params)
        return [{"program": params.chosen, **shown} for shown in rescorer.detail(query, window, own)]


def _chosen(params: ChoiceParams) -> tuple[Rescorer[Any], ProgramParams]:
    rescorer = params.rescorer
    own = LexicalParams(lexical=params.channels) if issubclass(rescorer.Params, LexicalParams) else ProgramParams()
    return rescorer, own
