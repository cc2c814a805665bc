"""The titles and texts of files: Markdown, HTML, plain text and PDF."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from es_ttc.common.markup import SOFT_HYPHEN, blanked
from es_ttc.common.text_files import whole_text
from es_ttc.errors import ConfigurationError

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*\n", re.DOTALL | re.MULTILINE)
_FRONT_TITLE = re.compile(r"""^title:[ \t]*["']?(.*?)["']?[ \t]*$""", re.MULTILINE)
_CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(
    r"^[ ]{0,3}#{1,6}[ \t]+(?P<marked>.+?)(?:[ \t]+#+)?[ \t]*$\n?"
    r"|^(?P<underlined>\S.*)\n[ ]{0,3}(?:=+|-{3,})[ \t]*$\n?",
    re.MULTILINE,
)
_INLINE = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[`*]")
_HTML_HEADING = re.compile(r"<(h[1-6])\b[^<>]*>(.*?)</\1\s*>", re.DOTALL | re.IGNORECASE)
_HTML_TITLE = re.compile(r"<title\b[^<>]*>(.*?)</title\s*>", re.DOTALL | re.IGNORECASE)
_HTML_HEAD = re.compile(r"<(head|title)\b[^<>]*>.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_UNSHOWN = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_BLOCK = re.compile(r"(?=</?(?:p|div|h[1-6]|li|tr|br|table|section|pre|blockquote)\b)", re.IGNORECASE)


class TitledText(NamedTuple):
    """A title, "" if the file has none, and the rest of the text."""

    title: str
    text: str


def markdown(text: str) -> TitledText:
    """Return the first heading outside of code, else the title of the front matter, and all other text."""
    front = _FRONT_MATTER.match(text)
    text = text[front.end() :] if front else text
    without_code = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    heading = _HEADING.search(without_code)
    if heading is None:
        title = _FRONT_TITLE.search(front[1]) if front else None
        return TitledText(title[1] if title else "", text.strip())
    rest = text[: heading.start()] + text[heading.end() :]
    return TitledText(_INLINE.sub(r"\1", heading["marked"] or heading["underlined"]), rest.strip())


def html(text: str) -> TitledText:
    """Return the first heading, else the title of the page, and the text of its body."""
    text = _UNSHOWN.sub(" ", text)
    heading, title = _HTML_HEADING.search(text), _HTML_TITLE.search(text)
    if heading is not None:
        text = text[: heading.start()] + " " + text[heading.end() :]
    lines = map(_one_line, blanked(_BLOCK.sub("\n", _HTML_HEAD.sub("", text, count=1))).splitlines())
    named = heading[2] if heading else title[1] if title else ""
    return TitledText(_one_line(blanked(named)), "\n".join(filter(None, lines)))


def _one_line(text: str) -> str:
    return " ".join(text.replace(SOFT_HYPHEN, "").split())


def plain(text: str) -> TitledText:
    """Return all text: it has no headings."""
    return TitledText("", text.strip())


def _pdf(file: Path) -> TitledText:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        with PdfReader(file) as reader:
            title = reader.metadata.title if reader.metadata else None
            pages = [page.extract_text() for page in reader.pages]
    except (PyPdfError, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigurationError(f"file [{file}] cannot be read as PDF: {error}") from error
    return TitledText((title or "").strip(), "\n".join(filter(None, map(str.strip, pages))))


def require_pypdf(name: str) -> None:
    """Raise an error if the library that reads PDF is not installed."""
    try:
        import pypdf  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"PDF in [{name}] needs pypdf: pip install 'es-ttc[pdf]'") from error


def _of_text(read: Callable[[str], TitledText]) -> Callable[[Path], TitledText]:
    return lambda file: read(whole_text(file))


TITLED_TEXTS: Mapping[str, Callable[[Path], TitledText]] = {
    ".md": _of_text(markdown),
    ".markdown": _of_text(markdown),
    ".html": _of_text(html),
    ".htm": _of_text(html),
    ".txt": _of_text(plain),
    ".pdf": _pdf,
}
"""How files are read, by their suffix."""
