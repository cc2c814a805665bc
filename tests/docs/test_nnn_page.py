"""The construction of the page on NNN decoding does what the page says."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "nnn.md"


def test_the_construction_parts_nnn_from_dense_retrieval() -> None:
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert block is not None
    found: dict[str, Any] = {}
    exec(compile(block[1], str(PAGE), "exec"), found)
    assert found["scores"].round(3).tolist() == [0.9, 0.436, 0.855]
    assert found["dense"] == {0, 2}
    assert found["nnn"] == {0, 1}
    assert found["unexplained"][2] < 0.2
    assert found["as_dense"] == {0, 2}
