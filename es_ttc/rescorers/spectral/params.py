"""The parameters of spectral rescoring."""

from typing import Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from es_ttc.rescorers.base import Params
from es_ttc.rescorers.spectral.kernel import MEAN

MAX_SCALES = 16
MAX_SCALE = 100_000

DEFAULT_SCALES: tuple[float, ...] = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0)
"""The paper's default grid, section III-C."""


class SpectralParams(Params):
    """What spectral rescoring can be told.

    ``scales`` takes numbers and ``"mean"`` in any order and holds them ascending, each once, the mean as ``inf``.
    """

    scales: tuple[float, ...] = Field(
        DEFAULT_SCALES,
        min_length=1,
        max_length=MAX_SCALES,
        description="Widths in tokens at which the document is read, 1 or more; 1 reads single tokens (MaxSim), "
        '`"mean"` the whole document (the cosine of its mean). With both, no score is below either\'s.',
    )
    aggregation: Literal["max", "top_mean", "percentile"] = Field(
        "max",
        description="How a scale's cosines over positions become one; the greatest scale then counts. `top_mean` and "
        "`percentile` keep a single outlying token from deciding.",
    )
    top_m: int = Field(3, ge=1, le=10_000, description="Positions averaged by `top_mean`; all where there are fewer.")
    percentile: float = Field(95.0, ge=0, le=100, description="Percentile taken by `percentile`; 100 is the maximum.")
    roles: Literal["max", "mean"] = Field(
        "max", description="How the scores of several query texts (the agents' roles) become one."
    )

    @field_validator("scales", mode="before")
    @classmethod
    def _ascending(cls, scales: Any) -> Any:
        return tuple(sorted({_scale(scale) for scale in scales})) if isinstance(scales, list | tuple) else scales

    @field_serializer("scales", when_used="json")
    def _as_given(self, scales: tuple[float, ...]) -> list[float | str]:
        return ["mean" if scale == MEAN else scale for scale in scales]

    @model_validator(mode="after")
    def _only_what_counts(self) -> Self:
        for field, owner in (("top_m", "top_mean"), ("percentile", "percentile")):
            default = type(self).model_fields[field].default
            if self.aggregation != owner and getattr(self, field) != default:
                raise ValueError(f'[{field}] belongs to aggregation "{owner}": set that, or leave [{field}] out')
        return self


def _scale(value: object) -> float:
    if value in ("mean", MEAN):
        return MEAN
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= MAX_SCALE:
        return float(value)
    raise ValueError(f'a scale is a number of tokens from 1 to {MAX_SCALE}, or "mean"')
