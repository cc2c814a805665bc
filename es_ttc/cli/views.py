"""Rankings on the terminal: one list, or several side by side, and passages with the matching span marked.

Documents are untrusted text: control characters for a terminal (escape sequences, direction overrides) are replaced
before anything is displayed, one character by one, so that offsets stay valid.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from es_ttc.common.markup import SOFT_HYPHEN, blanked
from es_ttc.common.whole_words import MAX_WORD, whole_words

MATCH = "black on yellow"
UP = "green"
DOWN = "red"
FAINT = "dim"
RELEVANT_STYLE = "bold green"
NARROWEST_COLUMN = 20  # minimum width of a column in cells; narrower rankings are rendered below each other

BAR_CELLS = 24
PASSAGES = 3  # number of passages below rankings side by side

_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACES = frozenset("\t\n\v\f\r\x85\u2028\u2029")


@dataclass(frozen=True, slots=True)
class ShownSpan:
    """The match of a method."""

    field: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShownHit:
    """One document of a ranking."""

    id: str
    score: float | None
    fields: Mapping[str, str]
    span: ShownSpan | None = None

    @property
    def titled(self) -> str | None:
        """The field that is shown as the title: `title`, else the first of several text fields."""
        return "title" if "title" in self.fields else next(iter(self.fields)) if len(self.fields) > 1 else None

    @property
    def label(self) -> str:
        """The document's title if it has one, else its id."""
        return self.fields[self.titled] if self.titled else self.id

    @property
    def line(self) -> str:
        """The document's title; without one its text, which says more than an id; without both its id."""
        return next(iter(self.fields.values()), self.id) if self.titled is None else self.label


@dataclass(frozen=True, slots=True)
class ShownRanking:
    """The result of one method, best first; it may have more hits than are displayed, for the moves."""

    heading: str
    hits: Sequence[ShownHit]
    note: str = ""

    def ranks(self) -> dict[str, int]:
        """Return each document's rank, from 1."""
        return {hit.id: place for place, hit in enumerate(self.hits, 1)}


def printable_text(text: str) -> str:
    """Return a text without control characters for a terminal; the length does not change."""
    return _OBEYED.sub(lambda match: " " if match[0] in _SPACES else "\N{REPLACEMENT CHARACTER}", text)


@dataclass(frozen=True, slots=True)
class ShownPassage:
    """The part of a document around its match, in a number of lines; without a match, its beginning.

    The match is coloured; without colour it is enclosed in « ».
    """

    hit: ShownHit
    lines: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Cut the text so that it fills the lines."""
        cells = self.lines * max(16, options.max_width - 8)  # wrapping at words leaves some of every line empty
        before, match, after = _around(self.hit, cells)
        text = Text(overflow="fold")
        text.append(before, FAINT)
        if match and console.color_system is None:
            match = f"«{match}»"
        text.append(match, MATCH)
        text.append(after, FAINT)
        yield text


def listing(ranking: ShownRanking, places: Iterable[int], *, relevant: Collection[str] = ()) -> RenderableType:
    """Display ranks of a ranking as a list: rank, label, score, id, and below them the matching passage."""
    if not ranking.hits:
        return Text("nothing was found", FAINT)
    entries: list[RenderableType] = []
    for place in places:
        if place > len(ranking.hits):
            break
        hit = ranking.hits[place - 1]
        head = Text.assemble((f"{place:>3}  ", FAINT), _labelled(hit, hit.label, relevant))
        if hit.score is not None:
            head.append(f"  {hit.score:.4f}", FAINT)
        if hit.label != hit.id:
            head.append(f"  {printable_text(hit.id)}", FAINT)
        entries += [head, Padding(ShownPassage(hit), (0, 0, 0, 5))]
    return Group(*entries)


def answer(rankings: Sequence[ShownRanking], size: int) -> RenderableType:
    """Display one ranking as a list; several side by side, with the passages of the last one's best below."""
    last = rankings[-1]
    note = (Text(f"{printable_text(last.note)}\n", FAINT),) if last.note else ()
    if len(rankings) == 1:
        return Group(*note, listing(last, range(1, size + 1)))
    return Group(
        *note,
        ShownComparison(rankings, size),
        Text(f"\nwhat {last.heading} matched", FAINT),
        listing(last, range(1, min(size, PASSAGES) + 1)),
    )


@dataclass(frozen=True, slots=True)
class ShownComparison:
    """Rankings side by side, one row per rank; from the second on, with each document's move against the first."""

    rankings: Sequence[ShownRanking]
    size: int = 10
    relevant: Collection[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render side by side if every ranking gets a readable column, else below each other."""
        if options.max_width // len(self.rankings) >= NARROWEST_COLUMN:
            yield self._table(self.rankings, options.max_width)
            return
        for ranking in self.rankings:
            yield self._table([ranking], options.max_width)

    def _table(self, rankings: Sequence[ShownRanking], width: int) -> Table:
        base = self.rankings[0]
        places = base.ranks()
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, width=width)
        table.add_column("", justify="right", style=FAINT, width=len(str(self.size)))
        for ranking in rankings:
            table.add_column(Text(ranking.heading), ratio=1, no_wrap=True, overflow="ellipsis")
            if ranking is not base:
                table.add_column("", justify="right", no_wrap=True, width=5)
        shown = min(self.size, max(len(ranking.hits) for ranking in rankings))
        for place in range(1, shown + 1):
            row: list[RenderableType] = [str(place)]
            for ranking in rankings:
                hit = ranking.hits[place - 1] if place <= len(ranking.hits) else None
                row.append(_labelled(hit, hit.line, self.relevant) if hit else "")
                if ranking is not base:
                    row.append(_move(places.get(hit.id), place) if hit else "")
            table.add_row(*row)
        return table


def _labelled(hit: ShownHit, text: str, relevant: Collection[str]) -> Text:
    if hit.id in relevant:
        return Text(f"● {printable_text(text)}", RELEVANT_STYLE, no_wrap=True, overflow="ellipsis")
    return Text(f"{'  ' if relevant else ''}{printable_text(text)}", no_wrap=True, overflow="ellipsis")


def _move(before: int | None, now: int) -> Text:
    """Return the mark of a document's move: ▲ up, ▼ down, = unmoved, new if the first ranking lacks it."""
    if before is None:
        return Text("new", UP)
    if before == now:
        return Text("=", FAINT)
    return Text(f"▲{before - now}", UP) if before > now else Text(f"▼{now - before}", DOWN)


def _around(hit: ShownHit, cells: int) -> tuple[str, str, str]:
    """Return the text before the match, the match, and the text after it, within a number of cells."""
    field, start, end = _place(hit)
    text = blanked(printable_text(hit.fields.get(field, "")))
    start, end = whole_words(text, start, end)
    before, match, after = (_squeezed(part) for part in (text[:start], text[start:end], text[end:]))
    match = _head(match, cells)
    room = max(0, cells - cell_len(match))
    if cell_len(after) < room // 2:
        before = _tail(before, room - cell_len(after))
    else:
        before = _tail(before, min(room // 2, cells // 3))
    return before, match, _head(after, room - cell_len(before))


def _place(hit: ShownHit) -> tuple[str, int, int]:
    if hit.span is not None and hit.span.field in hit.fields:
        return hit.span.field, hit.span.start, hit.span.end
    field = next((name for name in hit.fields if name != hit.titled), hit.titled)
    return field or "", 0, 0


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace(SOFT_HYPHEN, ""))


def _head(text: str, cells: int) -> str:
    """Return the beginning of a text, within a number of cells, with … if it was cut."""
    if cells < 1:
        return ""
    shown = Text(text)
    shown.truncate(cells, overflow="ellipsis")
    return shown.plain


def _tail(text: str, cells: int) -> str:
    """Return the end of a text from the beginning of a word, within a number of cells, with … if it was cut."""
    shown = _head(text[::-1], cells)[::-1]
    if shown == text or text[-len(shown)].isspace():
        return shown
    part, space, rest = shown.partition(" ")
    return f"…{rest}" if space and len(part) <= MAX_WORD else shown


def method_table(rows: Mapping[str, tuple[float, float, float | None]]) -> Table:
    """Return methods with nDCG, recall and added ms; the best of each quality is bold."""
    best_ndcg, best_recall = (max(row[place] or 0 for row in rows.values()) for place in (0, 1))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("method")
    table.add_column("nDCG@10", justify="right")
    table.add_column("", width=BAR_CELLS)
    table.add_column("recall@10", justify="right")
    table.add_column("added ms", justify="right")
    for method, (ndcg, recall, added_ms) in rows.items():
        table.add_row(
            method,
            Text(f"{ndcg:.3f}", "bold" if ndcg == best_ndcg else ""),
            Bar(size=1, begin=0, end=ndcg, width=BAR_CELLS, color="cyan"),
            Text(f"{recall:.3f}", "bold" if recall == best_recall else ""),
            Text("" if added_ms is None else f"{added_ms:.0f}" if added_ms >= 1 else "<1"),
        )
    return table
