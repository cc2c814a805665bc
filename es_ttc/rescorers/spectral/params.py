"""The parameters of spectral rescoring."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from es_ttc.rescorers.base import Params
from es_ttc.rescorers.spectral.smoothing import MEAN

MAX_SCALES = 16
MAX_SCALE = 100_000

DEFAULT_SCALES: tuple[float, ...] = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0)
"""The paper's default grid, section III-C."""

_TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2)
_STEPS = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
"""Values that `es-ttc tune` tries: temperatures, and factors from a scale's weight to that of the next wider one."""


class SpectralParams(Params):
    """What spectral rescoring can be told.

    ``scales`` takes numbers and ``"mean"`` in any order and holds them ascending, each once, the mean as ``inf``.
    """

    query: Literal["pooled", "tokens"] = Field(
        "pooled",
        description="`pooled`: one vector of the query, the paper's score. `tokens`: every token of the query has a "
        "spectral score of its own, and they are averaged (sections IV-A, XI: the paper's sum, divided by the number "
        "of tokens). It takes up to as many times longer as the query has tokens.",
    )
    scales: tuple[float, ...] = Field(
        DEFAULT_SCALES,
        min_length=1,
        max_length=MAX_SCALES,
        description="Widths in tokens at which the document is read, 1 or more; 1 reads single tokens (MaxSim), "
        '`"mean"` the whole document (the cosine of its mean). With both, no score is below either\'s.',
    )
    aggregation: Literal["max", "top_mean", "percentile"] = Field(
        "max",
        description="How a scale's cosines over positions become one. `top_mean` and `percentile` keep a single "
        "outlying token from deciding.",
    )
    top_m: int = Field(3, ge=1, le=10_000, description="Positions averaged by `top_mean`; all where there are fewer.")
    percentile: float = Field(95.0, ge=0, le=100, description="Percentile taken by `percentile`; 100 is the maximum.")
    pool: Literal["max", "mean", "softmax"] = Field(
        "max",
        description="How the scores of the scales become one: the greatest (the paper's), the mean, weighted by "
        "`scale_weights`, or the mean with weights in proportion to exp(score / `temperature`).",
    )
    temperature: float = Field(
        0.05,
        ge=0.001,
        le=1000,
        description="Of `softmax`, a difference of cosines: towards 0 it is the maximum, towards 1000 the mean.",
    )
    scale_weights: tuple[Annotated[float, Field(ge=0, le=1_000_000)], ...] | None = Field(
        None,
        description="Weights for `mean`, one for each of `scales` in the same order, 0 or more. Default: all equal.",
    )
    roles: Literal["max", "mean"] = Field(
        "max", description="How the scores of several query texts (the agents' roles) become one."
    )

    @model_validator(mode="before")
    @classmethod
    def _weights_follow_their_scales(cls, raw: Any) -> Any:
        scales, weights = (
            (raw.get(name) for name in ("scales", "scale_weights")) if isinstance(raw, Mapping) else (0, 0)
        )
        if not (isinstance(scales, list | tuple) and isinstance(weights, list | tuple) and len(scales) == len(weights)):
            return raw  # the fields' own checks say what is wrong
        try:
            order = sorted(range(len(scales)), key=lambda place: _scale(scales[place]))
        except ValueError:
            return raw
        return {**raw, "scales": [scales[i] for i in order], "scale_weights": [weights[i] for i in order]}

    @field_validator("scales", mode="before")
    @classmethod
    def _ascending(cls, scales: Any) -> Any:
        return tuple(sorted({_scale(scale) for scale in scales})) if isinstance(scales, list | tuple) else scales

    @field_validator("scale_weights", mode="before")
    @classmethod
    def _in_order(cls, weights: Any) -> Any:
        return tuple(weights) if isinstance(weights, list) else weights

    @field_serializer("scales", when_used="json")
    def _as_given(self, scales: tuple[float, ...]) -> list[float | str]:
        return ["mean" if scale == MEAN else scale for scale in scales]

    @model_validator(mode="after")
    def _only_what_counts(self) -> Self:
        for field, of, owner in (
            ("top_m", "aggregation", "top_mean"),
            ("percentile", "aggregation", "percentile"),
            ("temperature", "pool", "softmax"),
            ("scale_weights", "pool", "mean"),
            ("roles", "query", "pooled"),
        ):
            default = type(self).model_fields[field].default
            if getattr(self, of) != owner and getattr(self, field) != default:
                raise ValueError(f'[{field}] belongs to {of} "{owner}": set that, or leave [{field}] out')
        return self

    @model_validator(mode="after")
    def _a_weight_a_scale(self) -> Self:
        if self.scale_weights is None:
            return self
        if len(self.scale_weights) != len(self.scales):
            raise ValueError(
                f"[scale_weights] has {len(self.scale_weights)} weights for {len(self.scales)} different [scales]: "
                "give one for each scale"
            )
        if not any(self.scale_weights):
            raise ValueError("[scale_weights] are all 0: give at least one scale a weight above 0")
        return self

    def tried(self) -> Iterator[Mapping[str, Any]]:
        """Yield ways to join the scores of these scales: `softmax` of some temperatures, `mean` of some weights.

        Weights are powers of a factor: 1 for the plain mean, below 1 for more weight on narrow scales, above 1 for
        more on wide ones. A `pool` that is given stays.
        """
        given = self.model_fields_set
        if "pool" not in given or self.pool == "softmax":
            yield from ({"pool": "softmax", "temperature": temperature} for temperature in _TEMPERATURES)
        if "pool" not in given or self.pool == "mean":
            for step in _STEPS:
                weights = [step**place for place in range(len(self.scales))]
                yield {"pool": "mean", "scale_weights": [round(weight / max(weights), 6) for weight in weights]}


def _scale(value: object) -> float:
    if value in ("mean", MEAN):
        return MEAN
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= MAX_SCALE:
        return float(value)
    raise ValueError(f'a scale is a number of tokens from 1 to {MAX_SCALE}, or "mean"')
