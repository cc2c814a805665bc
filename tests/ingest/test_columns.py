"""Types of CSV columns: found, given, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest

from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest import Inputs, open_source
from es_ttc.index.ingest.columns import ColumnType, find_types, parse_types


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "", "-20"], "integer"),
        (["1", "2.5", "1e3", ".5"], "number"),
        (["1.234,50", "7", "-0,5"], "decimal-comma"),
        (["true", "False"], "boolean"),
        (["2026-01-02", "2026-01-02T03:04:05Z"], "date"),
        (["01234", "99999"], "text"),
        (["1,234", "5,678"], "text"),
        (["1", "n/a"], "text"),
        (["0.12345678901234567"], "text"),
        (["12345678901234567890"], "text"),
        (["2026", "next year"], "text"),
        (["", ""], "text"),
        (["1.2.3"], "text"),
        (["+49 30 1234"], "text"),
    ],
)
def test_the_type_that_fits_all_cells_is_taken(cells: list[str], kind: str) -> None:
    assert find_types(["a"], [[cell] for cell in cells]) == {"a": ColumnType(kind)}


def read(path: Path, types: str = "auto") -> list[Any]:
    return [
        record.document or record.error for record in Inputs([open_source(str(path), parse_types(types))]).records()
    ]


def test_cells_become_values_and_a_later_one_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id;price;ok\n1;1.234,5;true\n2;;false\n" + "3;7,5;true\n" * 998 + "4;cheap;true\n")
    first, second, *_, last = read(path)
    assert first == {"id": 1, "price": 1234.5, "ok": True}
    assert second == {"id": 2, "ok": False}
    assert "column [price] has [cheap]" in last
    assert "--types price=text" in last


def test_types_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("zip,size\n10115,1\n")
    assert read(path, "zip=text") == [{"zip": "10115", "size": 1}]
    assert read(path, "text") == [{"zip": "10115", "size": "1"}]
    with pytest.raises(InvalidRequest, match=r"\[--types\].*\[price\]"):
        read(path, "price=number")


@pytest.mark.parametrize("types", ["price", "price=money", "=text", "a=text,,b=text"])
def test_malformed_types_are_refused(types: str) -> None:
    with pytest.raises(InvalidRequest, match="COLUMN=TYPE"):
        parse_types(types)
