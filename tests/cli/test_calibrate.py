from pathlib import Path

import pytest

from es_ttc.cli.calibrate import read_queries
from es_ttc.errors import ConfigurationError


def test_queries_are_read_as_text_and_as_json(tmp_path: Path) -> None:
    file = tmp_path / "queries"
    file.write_text('what do herons eat\n\n{"_id": "1", "text": "鱼"}\n', encoding="utf-8")
    assert read_queries(file) == ["what do herons eat", "鱼"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"fine\n{broken\n", "line 2 .* is not JSON"), (b'{"query": "x"}\n', "line 1 .* no text"), (b"\xff\n", "UTF-8")],
)
def test_what_is_no_query_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "queries"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason):
        read_queries(file)
