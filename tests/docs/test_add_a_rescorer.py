"""The rescorer of the how-to page works as it stands there."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from es_ttc.rescorers.base import Feature, Query, Rescorer, Window
from es_ttc.vectors.quantise import quantise

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-rescorer.md"


def test_the_example_scores_a_window() -> None:
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert block is not None
    namespace: dict[str, Any] = {"__name__": "brief"}
    exec(compile(block[1], str(PAGE), "exec"), namespace)
    rescorer = namespace["BriefRescorer"]()
    assert isinstance(rescorer, Rescorer)

    vector = np.array([[0.6, 0.8]], dtype=np.float32)
    tokens = [quantise(np.repeat(vector, n, axis=0), "int8") for n in (100, 10)]
    window = Window(["long", "short"], np.ones(2, np.float32), np.repeat(vector, 2, axis=0), tokens)
    params = rescorer.Params.model_validate({"penalty": 0.1})
    assert rescorer.needs(params) == {Feature.POOLED, Feature.TOKENS}
    scores = rescorer.score(Query("text", vector), window, params)
    np.testing.assert_allclose(scores, [0.8, 0.9], atol=1e-6)
    assert rescorer.detail(Query("text", vector), window, params) == [{"tokens": 100}, {"tokens": 10}]
