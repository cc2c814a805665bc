"""The ``ttc`` section, the object by which a request opts in; all hooks have the same."""

import math
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from es_ttc.common.validation import nearest, shown, validated
from es_ttc.errors import InvalidRequest
from es_ttc.serving.http.limits import check_query, check_section

KEY = "ttc"
DEFAULT_METHOD = "blend"
"""The method of a `rescore` section that names none."""
MAX_WEIGHT = 1e9
MAX_CANDIDATES = 10_000
MAX_PASSAGES = 10
MAX_CONTEXT = 500
MAX_PARTS = 16
OF_RELEVANCE = ("relevance", "min_relevance")
OF_RESCORE = (
    *("score_mode", "query_weight", "rescore_query_weight", "candidates", "passages", "context", "parts"),
    *OF_RELEVANCE,
)
"""Keys that are valid in `rescore` only."""
_OF_WINDOW = '{"rescore": {"window_size": 50, "ttc": {}}}'
_OF_BODY = '{"query": {"match": {"title": "bees"}}, "from": 0, "size": 10, "rescore": {"ttc": {}}}'
_OUTSIDE = dict.fromkeys(("from", "size", "query", "rescore", "sort"), _OF_BODY) | {"window_size": _OF_WINDOW}
"""Keys of a search that belong beside or above a section, with an example."""
MAP = "map"
"""The value of `detail` that asks for the cosines of every token."""

_UNIT_MS = {"nanos": 1e-6, "micros": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(nanos|micros|ms|s|m|h|d)")

Weight = Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)]


class ScoreMode(StrEnum):
    """How the first-pass score and the method's score are combined; all but ``replace`` as in the engines."""

    REPLACE = "replace"
    TOTAL = "total"
    MULTIPLY = "multiply"
    AVG = "avg"
    MAX = "max"
    MIN = "min"


class Candidates(BaseModel):
    """Documents that join the window."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    knn: int | None = Field(
        None,
        ge=0,
        le=MAX_CANDIDATES,
        description="How many documents, those nearest to the query by pooled vector; 0 for the window alone.",
    )
    count: bool = Field(
        True,
        description="Whether totals and aggregations include the documents that join, or only what the query matches.",
    )


class Section(BaseModel):
    """The contents of a ``ttc`` section."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    place: ClassVar[str] = KEY

    method: str = Field(
        min_length=1,
        max_length=100,
        description="Name of the method. In `rescore` it may be left out and is then `blend`.",
    )
    query_text: str | None = Field(
        None,
        description="The query's text. Default: the text of the body's query, if it has exactly one; of a query string "
        "its words, without operators, field names and negated words. If the query has several texts, those that "
        "search only keyword, number or date fields are ignored.",
    )
    query_texts: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Several texts of one query (agents' roles); the best one counts, unless `parts` says otherwise.",
    )
    parts: Literal["each"] | None = Field(
        None,
        description=f"`each`: the texts of `query_texts` (2 to {MAX_PARTS}) are parts of a question. Each ranks the "
        "window by itself, and the hits are the best of each part in turns. `_ttc.parts` of a hit has the positions of "
        "the texts that it is for, from 0; `ttc.parts` says how well each part's best hit does. In `rescore` only.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="The method's own parameters.")
    timeout: str | None = Field(None, description="Scoring budget in the engines' time units, e.g. 200ms.")
    on_error: Literal["first_pass", "fail"] = Field(
        "first_pass", description="Response if scoring fails or times out: the engine's ranking, or an error."
    )
    detail: bool | Literal["map"] = Field(
        False,
        description="Whether `_ttc` of each hit contains its first-pass rank, the method's details, and `method`, "
        "`applied` and `reason` for clients that keep only hits. `map`: also the cosines of each token of a hit's text "
        "with the query, by scale and by query token. In `rescore` only.",
    )
    score_mode: ScoreMode = Field(
        ScoreMode.REPLACE,
        description="How both scores are combined. Without it, what the query says besides its words (functions, "
        "boosts, demotions) multiplies the score of `blend`, `hybrid` and `learned`.",
        strict=False,
    )
    query_weight: Weight = Field(1.0, description="Weight of the first-pass score.")
    rescore_query_weight: Weight = Field(1.0, description="Weight of the method's score.")
    candidates: Candidates | None = Field(
        None,
        description='Documents that join the window under the search\'s own filters, e.g. {"knn": 100, "count": true}. '
        "Default: as many as the window for `blend` and `hybrid`, none for other methods. In `rescore` only.",
    )

    passages: int = Field(
        0,
        ge=0,
        le=MAX_PASSAGES,
        description="Maximum number of passages per hit: the parts of its text that match the query best, by the "
        "stored token vectors. In `rescore` only.",
    )
    context: int | None = Field(
        None,
        ge=0,
        le=MAX_CONTEXT,
        description="Number of words before and after each of the `passages`, which then also contain their `text`. "
        "Passages of a field that meet are joined.",
    )

    relevance: bool = Field(
        False,
        description="Whether `_ttc` of each hit contains `relevance`, the probability that the hit is relevant. For "
        "`blend` in `rescore`, on an index with a calibration (`es-ttc calibrate relevance`).",
    )
    min_relevance: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Minimum relevance of a hit. Hits below it are dropped regardless of rank. The total counts the "
        "remaining hits of the window, so it is the same on every page; `ttc.relevance.cut` is the number of dropped "
        "hits. Needs a calibration, as `relevance` does.",
    )

    @field_validator("query_texts")
    @classmethod
    def _without_empty(cls, texts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if texts is None else tuple(text for text in texts if text.strip())

    @field_validator("detail", mode="before")
    @classmethod
    def _is_detail(cls, detail: Any) -> Any:
        if not isinstance(detail, bool) and detail != MAP:
            raise ValueError(f'must be true, false or "{MAP}"')
        return detail

    @field_validator("timeout")
    @classmethod
    def _is_time(cls, timeout: str | None) -> str | None:
        if timeout is not None and not milliseconds(timeout) > 0:
            raise ValueError("must be more than 0")
        return timeout

    @property
    def relevance_key(self) -> str | None:
        """The key that needs a calibration of relevance; None if the section has none."""
        return "min_relevance" if self.min_relevance is not None else "relevance" if self.relevance else None

    @property
    def shows_relevance(self) -> bool:
        """Whether relevance is computed if the index has a calibration."""
        return self.method == DEFAULT_METHOD and (self.asks_relevance or self.parts is not None)

    @property
    def asks_relevance(self) -> bool:
        """Whether hits show their relevance if their index has a calibration."""
        return bool(self.detail) or self.relevance_key is not None

    @property
    def keys_of_hits(self) -> list[str]:
        """What `_ttc` of each hit contains without `detail`."""
        return [key for key in ("relevance", "parts") if getattr(self, key)]

    @property
    def shows_map(self) -> bool:
        """Whether hits contain the cosines of their tokens."""
        return self.detail == MAP

    @property
    def timeout_ms(self) -> float | None:
        """The timeout in milliseconds, or None if the request sets none."""
        return None if self.timeout is None else milliseconds(self.timeout)


def parse_section(data: Any, *, default_method: str | None = None, model: type[Section] = Section) -> Section:
    """Validate a ``ttc`` section."""
    if not isinstance(data, dict):
        raise InvalidRequest(f'[{model.place}] must be an object such as {{"method": "spectral"}}, got {shown(data)}')
    check_section(data)
    if default_method is not None:
        data = {"method": default_method, **data}
    _check_keys(data, model)
    section = validated(model, data, model.place)
    if section.query_text is not None and section.query_texts is not None:
        raise InvalidRequest(f"[{model.place}] takes [query_text] or [query_texts], not both")
    if section.context is not None and not section.passages:
        raise InvalidRequest(f'[{model.place}.context] widens [passages], which is missing: add "passages": 1')
    check_query(section.query_texts or (section.query_text or "",))
    return section


def _check_keys(data: dict[str, Any], model: type[Section]) -> None:
    """Refuse keys of a search that belong outside a section."""
    for key, value in data.items():
        is_text = key == "query" and isinstance(value, str)  # [query_text] is meant
        known = {*model.model_fields, *_OUTSIDE}
        outside = None if key in model.model_fields or is_text else nearest(key, known)
        if outside is not None and outside in _OUTSIDE:
            raise InvalidRequest(
                f"[{model.place}] unknown field [{key}], [{outside}] belongs outside [{KEY}]: {_OUTSIDE[outside]}"
            )


def require_clause(section: Section, hook: str, instead: Callable[[str], str]) -> None:
    """Refuse the parts of a section that are valid in `rescore` only."""
    for key in OF_RESCORE:
        if getattr(section, key) != Section.model_fields[key].default:
            own = key in (*OF_RELEVANCE, "parts")
            fix = f"add a [rescore] with a [{KEY}] section" if own else instead(key)
            raise InvalidRequest(f"[{KEY}.{key}] belongs to [rescore]: {fix}")
    if section.shows_map:
        raise InvalidRequest(
            f'[{KEY}.detail] "{MAP}" belongs to [rescore]: in [{hook}] take true, or add a [rescore] with a '
            f"[{KEY}] section of its own"
        )


def milliseconds(time: str) -> float:
    """Return a time in the engines' notation (``500ms``, ``1.5s``, ``2m``) in milliseconds."""
    match = _TIME.fullmatch(time.strip().lower())
    if match is None:
        raise ValueError("must be a number with a unit (nanos, micros, ms, s, m, h, d), e.g. 200ms")
    value = float(match[1]) * _UNIT_MS[match[2]]
    if not math.isfinite(value):
        raise ValueError("is too long")
    return value


def texts_in(section: Section) -> tuple[str, ...]:
    """Return a section's own texts, without empty ones."""
    if section.query_texts is not None:
        return section.query_texts
    return (section.query_text,) if (section.query_text or "").strip() and section.query_text is not None else ()
