"""Checks of the built site: every link and anchor leads somewhere, and nothing is fetched from another host."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself when it shows a page; links to other hosts are for the reader to follow.
_FETCHED = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("use", "href"),
    ("object", "data"),
}
_NOT_FETCHED = {"canonical", "prev", "next"}


class _Page(HTMLParser):
    """What a page fetches, what it links to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if identifier := found.get("id") or (found.get("name") if tag == "a" else None):
            self.anchors.add(identifier)
        for name, value in attrs:
            if value and (tag, name) in _FETCHED and found.get("rel") not in _NOT_FETCHED:
                self.fetched.append(value)
            elif value and (tag, name) == ("a", "href"):
                self.links.append(value)


def problems(folder: Path) -> list[str]:
    """Return a sentence for each broken link or anchor and for each thing fetched from another host."""
    folder = folder.resolve()
    parsed = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in parsed.items():
        name = path.relative_to(folder)
        found += [f"{name} fetches [{address}] from another host" for address in page.fetched if _outside(address)]
        found += [
            f"{name} links to [{address}]: {problem}"
            for address in page.fetched + page.links
            if not _outside(address) and (problem := _broken(address, path, folder, parsed))
        ]
    for path in sorted(folder.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        if "url(http" in text or "url(//" in text or "@import" in text:
            found.append(f"{path.relative_to(folder)} fetches a style, a font or a picture")
    return found


def summary(folder: Path) -> str:
    """Return in words how many pages the site has, and its size."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    count = sum(path.suffix == ".html" for path in files)
    return f"{count} pages, {sum(path.stat().st_size for path in files) / 1e6:.0f} MB"


def _outside(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _broken(address: str, path: Path, folder: Path, parsed: dict[Path, _Page]) -> str | None:
    """Return what is wrong with an address within the site; None if nothing is."""
    parts = urlsplit(address)
    if parts.scheme == "data":
        return None
    # 404.html is shown below any address: its links are absolute.
    base = folder if parts.path.startswith("/") else path.parent
    target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if target.is_dir():
        target = target / "index.html"
    if not target.is_relative_to(folder) or not target.is_file():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in parsed and anchor not in parsed[target].anchors:
        return f"the page has no anchor [{anchor}]"
    return None
