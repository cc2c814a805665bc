"""Documents cut into sentences, pairs of sentences and paragraphs, in any script.

Sentence boundaries are those of sentencex (Wikimedia's segmenter: rules for some 300 languages, falling back along
related ones). Its English rules hold the terminal marks of other scripts too, so they serve every text here.

The paper states neither its splitter nor a cap on chunks (it must have one: its costs allow 7 sentences a document,
and documents of 50,000 words are among them). Here no text is dropped: a document of more than :data:`MAX_CHUNKS`
sentences or paragraphs is cut into that many runs of consecutive ones, of about equal numbers of characters.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from es_ttc.errors import ConfigurationError
from es_ttc.vectors.chunks import Granularity

MAX_CHUNKS = 64  # chunks of one granularity per document; at 10,000 words each is about MiniLM's input limit

_LANGUAGE = "en"
_BLANK_LINES = re.compile(r"\n\s*\n\s*")
_LINE = re.compile(r"\s*\n\s*")
_WORD = re.compile(r"\w")


class TextSpan(NamedTuple):
    """Characters ``start`` to ``end`` (exclusive) of a text; never empty, without white space at either end."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Split:
    """A document's chunks, each list in the order of the text; `pairs` are consecutive sentences, or the only one."""

    sentences: tuple[TextSpan, ...]
    pairs: tuple[TextSpan, ...]
    paragraphs: tuple[TextSpan, ...]

    def of(self, granularity: Granularity) -> tuple[TextSpan, ...]:
        """Return the chunks of one granularity."""
        match granularity:
            case "sentences":
                return self.sentences
            case "pairs":
                return self.pairs
            case "paragraphs":
                return self.paragraphs


def split(text: str, fields: Iterable[tuple[int, int]] = (), *, most: int = MAX_CHUNKS) -> Split:
    """Cut a document, of which no chunk but a run crosses a field's end."""
    parts = [part for start, end in (list(fields) or [(0, len(text))]) for part in _paragraphs(text, start, end)]
    sentences = _runs(_joined(text, (sentence for part in parts for sentence in _sentences(text, part))), most)
    pairs = tuple(TextSpan(a.start, b.end) for a, b in pairwise(sentences)) or sentences
    return Split(sentences, pairs, _runs(_joined(text, parts), most))


def _paragraphs(text: str, start: int, end: int) -> Iterator[TextSpan]:
    """Blank lines part paragraphs; where a text has none, line ends do."""
    field = text[start:end]
    mark = _BLANK_LINES if _BLANK_LINES.search(field) else _LINE
    position = 0
    for found in mark.finditer(field):
        yield from _trimmed(text, start + position, start + found.start())
        position = found.end()
    yield from _trimmed(text, start + position, end)


def _sentences(text: str, paragraph: TextSpan) -> Iterator[TextSpan]:
    try:
        from sentencex import get_sentence_boundaries
    except ImportError as error:
        raise ConfigurationError("programs split sentences by sentencex: pip install 'es-ttc[programs]'") from error
    for boundary in get_sentence_boundaries(_LANGUAGE, text[paragraph.start : paragraph.end]):
        yield from _trimmed(text, paragraph.start + boundary["start_index"], paragraph.start + boundary["end_index"])


def _trimmed(text: str, start: int, end: int) -> Iterator[TextSpan]:
    """Yield the span without the white space around it, if anything is left."""
    part = text[start:end]
    stripped = part.strip()
    if stripped:
        first = start + len(part) - len(part.lstrip())
        yield TextSpan(first, first + len(stripped))


def _joined(text: str, spans: Iterable[TextSpan]) -> list[TextSpan]:
    """Join a chunk without letters or digits to the one before it; a leading one to the first that has some."""
    joined: list[TextSpan] = []
    for span in spans:
        worded = _WORD.search(text, span.start, span.end) is not None
        if joined and (not worded or _WORD.search(text, joined[-1].start, joined[-1].end) is None):
            joined[-1] = TextSpan(joined[-1].start, span.end)
        else:
            joined.append(span)
    return joined


def _runs(spans: Sequence[TextSpan], most: int) -> tuple[TextSpan, ...]:
    """Return the spans, or if there are too many, ``most`` runs of consecutive ones of about equal length."""
    if len(spans) <= most:
        return tuple(spans)
    runs: list[TextSpan] = []
    total, taken, first = sum(end - start for start, end in spans), 0, 0
    for place, span in enumerate(spans):
        taken += span.end - span.start
        runs_left, spans_left = most - len(runs) - 1, len(spans) - place - 1
        full = taken * most >= (len(runs) + 1) * total
        if (full and runs_left) or spans_left == runs_left or not spans_left:
            runs.append(TextSpan(spans[first].start, span.end))
            first = place + 1
    return tuple(runs)
