"""The rewriter of the how-to page works as it stands there."""

import re
from pathlib import Path
from typing import Any

from es_ttc.rewriters.base import Fields, Rewriter

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "rewrite-queries-with-sira.md"


async def test_the_example_adds_the_long_forms() -> None:
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert block is not None
    namespace: dict[str, Any] = {"__name__": "abbreviations"}
    exec(compile(block[1], str(PAGE), "exec"), namespace)
    rewriter = namespace["Abbreviations"]()
    assert isinstance(rewriter, Rewriter)
    nothing: Any = None
    params = rewriter.Params.model_validate({"weight": 2})
    expansion = await rewriter.expand("COPD in winter", nothing, params)
    query = rewriter.query("COPD in winter", Fields(("body^2",)), expansion, params, named=False)
    own = {"match": {"body": {"query": "COPD in winter", "boost": 2.0}}}
    long = {"match_phrase": {"body": {"query": "chronic obstructive pulmonary disease", "boost": 2.0}}}
    assert query == {"bool": {"should": [own, {"bool": {"should": [long], "boost": 2.0}}]}}
