import datetime
import gzip
import io
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from es_ttc.common import text_files
from es_ttc.errors import ConfigurationError, EsTtcError, InvalidRequest
from es_ttc.index.ingest import readers
from es_ttc.index.ingest.readers import Documents, Inputs, JsonLines, Record, count_records, open_source


def read(path: Path, skip: int = 0) -> list[Record]:
    return list(Inputs([open_source(str(path))]).records(skip))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_json_lines_with_bom_crlf_blank_lines_and_no_last_newline(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"b": {"c": [2]}}')
    assert [(each.number, each.document) for each in read(path)] == [(1, {"a": 1}), (4, {"b": {"c": [2]}})]


def test_malformed_lines_come_out_with_number_reason_and_text(tmp_path: Path) -> None:
    deep = f'{{"a": {"[" * 900}{"]" * 900}}}'
    lines = ['{"a": 1}', '{"a": ', "[1]", '{"a": "\\ud800"}', '{"a": NaN}', '{"a": 2}', deep]
    path = write(tmp_path / "a.ndjson", "\n".join(lines).encode() + b'\n{"a": "\xff"}\n')
    records = read(path)
    assert [each.document for each in records] == [{"a": 1}, None, None, None, None, {"a": 2}, None, None]
    bad = [each for each in records if each.error]
    assert [each.number for each in bad] == [2, 3, 4, 5, 7, 8]
    assert [each.raw for each in bad] == [*lines[1:5], deep, '{"a": "\\xff"}']
    assert "more than 200 levels" in str(bad[4].error)
    assert "not an object" in str(bad[1].error)
    assert all("not JSON" in str(each.error) for each in (bad[0], *bad[2:]))


def test_an_overlong_line_or_row_is_rejected_without_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1}\n{"a": "' + "x" * 500 + '"}\n{"a": 2}\n')
    source = JsonLines(str(path), limit=100)
    records = [source.decode(*row) for row in source.rows()]
    assert [each.document for each in records] == [{"a": 1}, None, {"a": 2}]
    assert records[1].number == 2
    assert "longer than 100 bytes" in str(records[1].error)
    monkeypatch.setattr(text_files, "MAX_LINE", 100)
    table = write(tmp_path / "a.csv", "a,b\n1,2\n" + "x," * 60 + "\n" + '3,"' + "y\n" * 60 + "4,5\n")
    records = read(table)
    assert [(each.number, each.document) for each in records][:2] == [(2, {"a": 1, "b": 2}), (3, None)]
    assert [each.number for each in records if "than 100 characters" in str(each.error)] == [3, 52]
    assert (records[-1].number, records[-1].document) == (64, {"a": 4, "b": 5})
    monkeypatch.setattr(readers, "MAX_LINE", 100)  # of the rows, too, that are kept to find types
    late = read(write(tmp_path / "b.csv", "a,b\n" + "1,2\n" * 60 + "x,y\n"))[-1]
    assert "first rows have the type integer" in str(late.error)


def test_a_last_line_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1}')
    source = JsonLines(str(path), limit=8)
    assert [source.decode(*row).document for row in source.rows()] == [{"a": 1}]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl"])
def test_gzip_is_read_whatever_its_suffix(name: str, tmp_path: Path) -> None:
    lines = b'{"a": 1}\n{"a": 2}\n'
    for content in (gzip.compress(lines), lines):
        assert [each.document for each in read(write(tmp_path / name, content))] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(("name", "encoding"), [("a.csv", "utf-16"), ("a.jsonl", "utf-16"), ("a.tsv.gz", "utf-16")])
def test_utf_16_is_refused(name: str, encoding: str, tmp_path: Path) -> None:
    content = "id\n1\n".encode(encoding)
    path = write(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ConfigurationError, match="iconv -f UTF-16 -t UTF-8"):
        read(path)


def test_a_truncated_gzip_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-12])
    with pytest.raises(ConfigurationError, match="cannot be read on"):
        read(path)


def test_csv_quotes_empty_cells_bom_and_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufeffid,title,text\r\n1,"a, ""b""","two\nlines"\r\n\r\n2,,ไทย\r\n')
    records = read(path)
    assert [each.document for each in records] == [
        {"id": 1, "title": 'a, "b"', "text": "two\nlines"},
        {"id": 2, "text": "ไทย"},
    ]
    assert [each.number for each in records] == [3, 5]


def test_csv_rows_that_do_not_fit_are_rejected_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'id,text\n1,a\n2\n3,b,c\n4,"a"b\n5,e\n')
    records = read(path)
    assert [each.document for each in records] == [{"id": 1, "text": "a"}, None, None, None, {"id": 5, "text": "e"}]
    assert "1 cells, and the header 2" in str(records[1].error)
    assert "not CSV" in str(records[3].error)


def test_csv_cells_may_be_long_and_tabs_may_separate(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "id\ttext\n1\t" + "x" * 300_000 + "\n")
    [record] = read(path)
    assert record.document is not None
    assert len(record.document["text"]) == 300_000


@pytest.mark.parametrize(
    ("header", "message"),
    [("a," * 10_000, "10,001 columns")],
)
def test_csv_headers_that_name_no_field_are_refused(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(EsTtcError, match=message):
        read(write(tmp_path / "a.csv", f"{header}\n1,2,3\n"))


def test_parquet_values_become_json_values(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    rows = [
        {"id": 1, "price": Decimal("1.50"), "at": moment, "raw": b"\x00\x01", "tags": ["a"], "in": {"x": 1, "y": None}},
        {"id": 2, "price": None, "at": None, "raw": None, "tags": None, "in": None},
    ]
    path = tmp_path / "a.parquet"
    table = pyarrow.Table.from_pylist(rows)
    pairs = pyarrow.array([[("k", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    parquet.write_table(table.append_column("map", pairs), path)
    first, second = read(path)
    assert first.document == {
        "id": 1,
        "price": 1.5,
        "at": "2026-01-02T03:04:05+00:00",
        "raw": "AAE=",
        "tags": ["a"],
        "in": {"x": 1, "y": None},
        "map": {"k": 1},
    }
    assert second.document == {"id": 2}


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(InvalidRequest, match="is not Parquet"):
        open_source(str(write(tmp_path / "a.parquet", "no")))


@pytest.mark.parametrize("name", ["absent.jsonl", "a.json", "a.docx", "a.gz"])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if not name.startswith("absent"):
        path.write_text("{}")
    with pytest.raises(InvalidRequest, match=name):
        open_source(str(path))


def test_standard_input_is_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}\n')))
    inputs = Inputs([open_source("-")])
    assert inputs.fraction is None
    assert [each.document for each in inputs.records()] == [{"a": 1}]


def test_skipping_and_peeking_go_over_several_files(tmp_path: Path) -> None:
    names = [write(tmp_path / f"{name}.jsonl", f'{{"a": "{name}1"}}\n{{"a": "{name}2"}}\n') for name in "xyz"]
    inputs = Inputs([open_source(str(name)) for name in names])
    assert inputs.fraction == 0
    assert [each.document for each in inputs.peek(1)] == [{"a": "x1"}]
    assert [(each.document or {})["a"] for each in inputs.records(skip=3)] == ["y2", "z1", "z2"]
    assert inputs.fraction == 1


def test_documents_in_memory_are_a_source() -> None:
    inputs = Inputs([Documents([{"a": 1}, {"a": 2}], total=2)])
    assert [each.document for each in inputs.records()] == [{"a": 1}, {"a": 2}]
    assert inputs.fraction == 1


def test_records_of_unequal_length_are_counted_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['{"a": "short"}'] * 60 + [f'{{"a": "{"long " * 50}"}}'] * 241
    plain = write(tmp_path / "a.jsonl", "\n".join(lines))
    packed = write(tmp_path / "b.jsonl.gz", gzip.compress("\n".join(lines).encode()))
    table = write(tmp_path / "c.csv", "a\n" + "x\n" * 7)
    inputs = Inputs([open_source(str(path)) for path in (plain, packed, table)])
    inputs.peek(50)
    assert count_records(inputs) == 2 * 301 + 7
    assert len(list(inputs.records())) == 2 * 301 + 7
    assert count_records(Inputs([JsonLines("-")])) is None
    assert count_records(Inputs([Documents([{"a": 1}])])) is None
    monkeypatch.setattr(readers, "MAX_COUNTED_BYTES", 40_000)
    assert count_records(Inputs([open_source(str(plain))])) == pytest.approx(301, rel=0.25)


def test_documents_of_a_folder_have_their_paths_and_first_headings(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "guide/front.md": "---\ntitle: 'Not this'\n---\n```\n# no heading\n```\n## The [second](x.md) `one` ##\n"
        "A *text*.\n# C#\n",
        "guide/only_front.markdown": '---\ntitle: "From above"\n---\nA text.\n',
        "guide/underlined.md": "Above\n=====\n\nBelow.",
        "bare-name.md": "No heading.",
        "page.html": "<html><head><title>Page</title><style>h1 {}</style></head><body><!-- <h1>no</h1> --><p>Before</p>"
        "<h2 class='a'>Caf&eacute; <b>here</b></h2><script>var a = '<h1>';</script><ul><li>one<li>two&nbsp;three</ul>",
        "titled.htm": "<title>Page &amp; title</title><p>Only\na text",
        "notes.txt": "\ufeffFirst line.\nSecond line.\n",
        "wrong.txt": b"\xff\xfe\xfa",
        ".hidden/a.md": "# Hidden",
        "data.jsonl": "{}",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, content)
    found = read(tmp_path)
    assert [(one.document or {"_id": one.raw}) for one in found] == [
        {"_id": "bare-name.md", "title": "bare name", "text": "No heading."},
        {
            "_id": "guide/front.md",
            "title": "The second one",
            "text": "```\n# no heading\n```\nA *text*.\n# C#",
        },
        {"_id": "guide/only_front.markdown", "title": "From above", "text": "A text."},
        {"_id": "guide/underlined.md", "title": "Above", "text": "Below."},
        {"_id": "notes.txt", "title": "notes", "text": "First line.\nSecond line."},
        {"_id": "page.html", "title": "Café here", "text": "Before\none\ntwo three"},
        {"_id": "titled.htm", "title": "Page & title", "text": "Only\na text"},
        {"_id": str(tmp_path / "wrong.txt")},
    ]
    assert "UTF-16" in (found[-1].error or "")
    [alone] = read(tmp_path / "guide" / "underlined.md")
    assert alone.document == {"_id": "underlined.md", "title": "Above", "text": "Below."}
    assert count_records(Inputs([open_source(str(tmp_path))])) == 8


def test_pdf_is_read_by_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pytest.importorskip("pypdf")
    figure = pyplot.figure()
    figure.text(0.1, 0.5, "A kettle boils water.")
    figure.savefig(tmp_path / "manual.pdf", metadata={"Title": "The manual"})
    pyplot.close(figure)
    write(tmp_path / "wrong.pdf", "no PDF")
    good, wrong = read(tmp_path)
    assert good.document == {"_id": "manual.pdf", "title": "The manual", "text": "A kettle boils water."}
    assert "cannot be read as PDF" in (wrong.error or "")
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(EsTtcError, match=r"es-ttc\[pdf\]"):
        open_source(str(tmp_path))


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"has no file of \.md"):
        open_source(str(tmp_path))
