"""Learned: a model of `es-ttc train rank` over blend's signals and numeric fields of documents."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from es_ttc.common.validation import did_you_mean
from es_ttc.errors import InvalidRequest
from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.blend.normalise import logistic
from es_ttc.rescorers.blend.rescorer import BASE_SIGNALS
from es_ttc.rescorers.blend.signals import SignalName, all_signal_scores, read_by, signal_matrix, signals_summary
from es_ttc.rescorers.blend.weights import Trust
from es_ttc.rescorers.learned.fields import NumericField, field_columns
from es_ttc.rescorers.learned.model import RANKING_MODELS, RankingModel
from es_ttc.rescorers.learned.scores import learned_scores, model_features
from es_ttc.vectors.tokens import Float32


class LearnedParams(Params):
    """What learned can be told."""

    model: str | None = Field(
        None,
        description="Name of the model: a file of the folder `ranking_models` of the settings, without `.json`. May be "
        "left out where the folder has one model.",
    )

    _models: Mapping[str, RankingModel] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _is_served(self, info: ValidationInfo) -> "LearnedParams":
        self._models = (info.context or {}).get(RANKING_MODELS, {})
        known = tuple(self._models)
        if self.model is None and len(known) > 1:
            raise ValueError(f"[model] is missing: this gateway serves {', '.join(known)}")
        if self.model is not None and self.model not in known:
            hint = did_you_mean(self.model, known) if known else f": {_NO_MODELS}"
            raise ValueError(f"unknown model [{self.model}]{hint}")
        return self

    @property
    def chosen(self) -> RankingModel:
        """The model."""
        if not self._models:
            raise InvalidRequest(f"method [learned] has no model: {_NO_MODELS}")
        return self._models[self.model or next(iter(self._models))]

    @property
    def signals(self) -> tuple[SignalName, ...]:
        """The model's signals; those that every index has where no model is served."""
        return self.chosen.signals if self._models else BASE_SIGNALS

    @property
    def fields(self) -> tuple[str, ...]:
        """The numeric fields that the model reads."""
        return tuple(field.name for field in self.chosen.fields) if self._models else ()


_NO_MODELS = "write one with `es-ttc train rank` and name its folder in the setting ranking_models"


class LearnedRescorer:
    """Trees over blend's signals and numeric fields of documents, learned from judgements by `es-ttc train rank`.

    A score is blend's mean plus the trees' values, shown as ``1 / (1 + exp(-sum))``. As with blend the nearest
    documents join the window. Missing signals take the trees' branches for missing values. The numeric fields that a
    model names are read with the caller's rights; where the index lacks one, the first pass is returned with the
    reason.
    """

    name: ClassVar[str] = "learned"
    Params: ClassVar[type[Params]] = LearnedParams
    wants: ClassVar[frozenset[Feature]] = frozenset({Feature.NORMS})
    similarity: ClassVar[bool] = False
    joins_nearest: ClassVar[bool] = True

    def needs(self, params: LearnedParams) -> frozenset[Feature]:
        """What the signals read that every index with features has."""
        return read_by(name for name in params.signals if name in BASE_SIGNALS)

    def takes(self, params: LearnedParams) -> frozenset[Feature]:
        """What the model's other signals read."""
        return read_by(params.signals) - self.needs(params)

    def fields(self, params: LearnedParams) -> tuple[str, ...]:
        """Return the numeric fields that the model reads."""
        return params.fields

    def score(self, query: Query, window: Window, params: LearnedParams) -> Float32:
        """Return the scores, ``(k,)``."""
        model = params.chosen
        trust = Trust.of(query, window)
        matrix = signal_matrix(model.signals, query, window)
        features = model_features(model.signals, matrix, few_words=trust.few_words)
        weights = trust.weights(model.signals)
        columns = field_columns(model.fields, window.numbers, len(window))
        total = learned_scores(features, columns, [weights[name] for name in model.signals], model.blend, model.trees)
        return logistic(total)

    def detail(self, query: Query, window: Window, params: LearnedParams) -> list[dict[str, Any]]:
        """Return each signal's score, and the value of each numeric field that the model reads."""
        model = params.chosen
        signals = all_signal_scores(model.signals, query, window)
        values = field_columns([NumericField(field.name) for field in model.fields], window.numbers, len(window))
        details: list[dict[str, Any]] = []
        for place in range(len(window)):
            scores = {
                name: {"score": round(float(one.scores[place]), 6) if one.known[place] else None}
                for name, one in signals.items()
            }
            numbers = {
                field.name: None if np.isnan(value) else float(value)
                for field, value in zip(model.fields, values[place], strict=True)
            }
            details.append({"signals": scores, **({"fields": numbers} if numbers else {})})
        return details

    def summary(self, query: Query, window: Window, params: LearnedParams) -> dict[str, Any]:
        """Return the model, its signals, those that the index lacks, and how many documents have no features.

        For a model that reads numeric fields also these, and how many documents have no value of one.
        """
        model = params.chosen
        summary = {"model": model.name, **signals_summary(model.signals, self.needs(params), query, window)}
        if not model.fields:
            return summary
        values = field_columns([NumericField(field.name) for field in model.fields], window.numbers, len(window))
        without = np.isnan(values).sum(axis=0).tolist()
        summary["fields"] = [field.name for field in model.fields]
        lacking = {field.name: count for field, count in zip(model.fields, without, strict=True) if count}
        return {**summary, "without_field": lacking} if lacking else summary
