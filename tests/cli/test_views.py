"""What the terminal shows of rankings: fitting any width, marking moves and matches, obeying no document."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from es_ttc.cli.views import ShownComparison, ShownHit, ShownPassage, ShownRanking, ShownSpan, listing, printable_text

TEXT = (
    "This module gives access to mathematical functions. acos(x): Return the arc cosine of x. "
    "ceil(x): Return the ceiling of x. copysign(x, y): Return a float with the magnitude of x but the sign of y."
)
START = TEXT.index("ceil(x)")
SPAN = ShownSpan("text", START, START + len("ceil(x): Return the ceiling of x."))


def shown(view: RenderableType, width: int = 80, *, colour: bool = False) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def hit(name: str, span: ShownSpan | None = None, text: str = TEXT) -> ShownHit:
    return ShownHit(name, 0.5, {"title": name, "text": text}, span)


def ranking(heading: str, names: str) -> ShownRanking:
    return ShownRanking(heading, [hit(name) for name in names.split()])


THREE = ShownComparison(
    [ranking("engine BM25", "a b c d e f"), ranking("dense", "b a c x"), ranking("spectral", "f a y")], size=4
)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_rankings_stand_side_by_side_with_their_moves(width: int) -> None:
    lines = shown(THREE, width).splitlines()
    assert all(len(line) <= width for line in lines)
    heading = next(line for line in lines if "engine BM25" in line)
    assert heading.split() == ["engine", "BM25", "dense", "spectral"]
    rows = [line.split() for line in lines[lines.index(heading) + 2 :]]
    assert rows == [
        ["1", "a", "b", "▲1", "f", "▲5"],
        ["2", "b", "a", "▼1", "a", "▼1"],
        ["3", "c", "c", "=", "y", "new"],
        ["4", "d", "x", "new"],
    ]


@pytest.mark.parametrize("width", [24, 40, 59])
def test_a_narrow_terminal_gets_them_under_each_other(width: int) -> None:
    lines = shown(THREE, width).splitlines()
    assert all(cell_len(line) <= width for line in lines)
    assert [line.split() for line in lines if "engine BM25" in line] == [["engine", "BM25"]]
    assert ["1", "f", "▲5"] in [line.split() for line in lines]


def test_relevant_documents_are_marked_wherever_they_stand() -> None:
    view = ShownComparison(THREE.rankings, size=6, relevant={"f"})
    marked = [line for line in shown(view).splitlines() if "●" in line]
    assert [line.count("● f") for line in marked] == [1, 1]
    assert "●" not in shown(THREE)


def test_long_and_wide_labels_are_cut_to_their_column() -> None:
    wide = ShownRanking("engine", [hit("日本語のタイトルがとても長い場合はどうなりますか" * 3), hit("x" * 500)])
    for width in (30, 80):
        assert all(cell_len(line) <= width for line in shown(ShownComparison([wide, wide]), width).splitlines())


@pytest.mark.parametrize("width", [40, 72, 120])
@pytest.mark.parametrize("lines", [1, 2, 3])
def test_a_passage_is_cut_around_its_match(width: int, lines: int) -> None:
    long = hit("math", ShownSpan("text", START + 5000, SPAN.end + 5000), "x " * 2500 + TEXT + " y" * 2500)
    output = shown(ShownPassage(long, lines), width)
    assert len(output.splitlines()) <= lines + 1
    assert "«ceil(x): Return" in " ".join(output.split())
    assert "…" in output
    if width * lines > 100:
        assert output.startswith("…")
        assert output.rstrip().endswith("…")


def test_a_passage_shows_its_match_in_colour_where_there_is_colour() -> None:
    output = shown(ShownPassage(hit("math", SPAN), 3), 200, colour=True)
    assert "\x1b[30;43mceil(x): Return the ceiling of x.\x1b[0m" in output
    assert "«" not in output


def test_a_match_longer_than_the_lines_is_cut_and_one_at_either_edge_kept() -> None:
    whole = hit("math", ShownSpan("text", 0, len(TEXT)))
    assert "…»" in shown(ShownPassage(whole, 1), 50)
    first = hit("math", ShownSpan("text", 0, 4))
    assert shown(ShownPassage(first, 1), 50).startswith("«This» module")
    last = hit("math", ShownSpan("text", len(TEXT) - 2, len(TEXT)))
    assert shown(ShownPassage(last, 1), 50).rstrip().endswith("«y.»")


def test_without_a_match_a_passage_is_the_beginning() -> None:
    assert shown(ShownPassage(hit("math"), 1), 50).startswith("This module")
    assert shown(ShownPassage(hit("math", ShownSpan("elsewhere", 3, 9)), 1), 50).startswith("This module")
    assert shown(ShownPassage(ShownHit("7", None, {}), 1)).strip() == ""


@pytest.mark.parametrize(
    ("text", "match", "marked"),
    [
        ("measured by HOMA-IR and more", "-I", "«HOMA-IR»"),
        ("steatohepatitis, fatty", "hepati", "«steatohepatitis»"),
        ("two words (here)", "two words", "«two words»"),
        ("takes 3.7 GB, 1,000 times", "takes 3", "«takes 3.7» GB"),
        ("takes 3.7 GB, 1,000. Then", "000", "GB, «1,000». Then"),
        ("takes 3.7 GB", ".7 GB", "takes «3.7 GB»"),
        ("a function() call", "()", "function«()» call"),
        ("<p>The caf&eacute; <b>opens</b></p>", "caf&eacute;", "The «café» opens"),
        ("bab\u0301\u0323 c", "a", "«bab\u0301\u0323»"),
        ("a\u0301\u0323\u0302", "a", "«a\u0301\u0323\u0302»"),
        ("(e\u0301\u0323)", "e\u0301", "(«e\u0301\u0323»)"),
        ("雨の日に使う傘です", "使う傘", "«使う傘»"),
        ("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 100 + "x", "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 100, "«"),
    ],
)
def test_a_match_is_widened_to_whole_words(text: str, match: str, marked: str) -> None:
    start = text.index(match)
    assert marked in shown(ShownPassage(hit("a", ShownSpan("text", start, start + len(match)), text)))


def test_a_passage_that_is_cut_begins_at_a_word() -> None:
    text = "unbelievable " * 20 + "match " + "after " * 20
    start = text.index("match")
    lines = shown(ShownPassage(hit("a", ShownSpan("text", start, start + 5), text), 1), 50)
    assert re.search(r"…(unbelievable )+«match» after", lines)


def test_a_match_in_the_title_is_shown_in_the_title() -> None:
    assert "«math»" in shown(ShownPassage(hit("math", ShownSpan("title", 0, 4)), 1))


def test_a_list_gives_rank_score_label_and_passage() -> None:
    lines = shown(
        listing(ShownRanking("spectral", [hit("math", SPAN), ShownHit("id-2", None, {"text": "plain"})]), [1, 2, 3])
    )
    assert "  1  math  0.5000" in lines
    assert "  2  id-2\n" in lines
    assert "«ceil(x)" in lines
    titled = ShownHit("id-3", 1.0, {"title": "A title", "text": "plain"})
    assert "  1  A title  1.0000  id-3\n" in shown(listing(ShownRanking("bm25", [titled]), [1]))
    assert "nothing was found" in shown(listing(ShownRanking("bm25", []), [1, 2, 3]))


HOSTILE = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eabc\u2066 \ud800 [bold]kept[/bold] tab\there\nline"


def test_documents_do_not_command_the_terminal() -> None:
    view = [hit(HOSTILE, ShownSpan("text", 3, 9), HOSTILE)]
    output = shown(listing(ShownRanking(HOSTILE[:0] + "x", view), [1])) + shown(
        ShownComparison([ShownRanking("x", view)])
    )
    assert not set(output) & set("\x1b\x07\x9b\u202e\u2066\ud800")
    assert "[bold]kept[/bold]" in output


@given(st.text(st.characters(exclude_categories=())))
def test_cleaning_keeps_every_position_and_leaves_nothing_that_a_terminal_obeys(text: str) -> None:
    cleaned = printable_text(text)
    assert len(cleaned) == len(text)
    cleaned.encode()  # a lone surrogate would raise
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in cleaned)
    assert printable_text(cleaned) == cleaned


@given(st.text(max_size=300), st.integers(0, 300), st.integers(0, 300), st.integers(16, 120), st.integers(1, 4))
def test_any_passage_fits_its_lines(text: str, start: int, length: int, width: int, lines: int) -> None:
    output = shown(
        ShownPassage(ShownHit("1", 1.0, {"text": text}, ShownSpan("text", start, start + length)), lines), width
    )
    rows = output.splitlines()
    assert all(cell_len(row) <= width for row in rows)
    assert len(rows) <= lines * 2 + 1
