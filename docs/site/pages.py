"""What the site is built from: the pages of docs/, and the files elsewhere in the repository that they link to.

The Markdown is written for readers of the repository, with relative links. A file outside docs/ is copied to
`repository/`, and the links to it are changed: the site needs no address of a repository, and shows the same version.
"""

import os
import re
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import platformdirs

from es_ttc.common import maven
from es_ttc.common.maven import Artifact, Pinned

OUTSIDE = "repository"
RECORDS = "decisions"
MERMAID = Pinned(
    Artifact("org.webjars.npm", "mermaid", "11.14.0"),
    sha256="fcc17f377c0f657513a66735d41a3095cad37e8059d80e2d80d39f91458cfbed",
    size=16_257_239,
)
"""mermaid's own release file, unchanged, as a Maven artifact."""

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
_FENCE = re.compile(r"^ *```")
_CODE = re.compile(r"`[^`]+`")


def stage(root: Path, site: Path, folder: Path) -> list[str]:
    """Write the generator's configuration and all pages into an empty folder; return what is wrong with them.

    Args:
        root: The repository.
        site: The folder with the configuration, the theme's overrides and the style sheet.
        folder: Where to write; what is there is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    staged = folder / "docs"
    configuration = Path(shutil.copy(site / "zensical.toml", folder))
    listed = set(_leaves(tomllib.loads(configuration.read_text(encoding="utf-8"))["project"]["nav"]))
    problems = _Pages(root, staged).stage(listed)
    shutil.copytree(site / "overrides", folder / "overrides")
    (staged / "assets").mkdir()
    shutil.copy(site / "site.css", staged / "assets")
    return [*problems, *_missing_in_navigation(staged, listed)]


def add_mermaid(folder: Path) -> None:
    """Add the script that draws the diagrams to the staged pages; it is fetched once and then read from the cache.

    Raises:
        EsTtcError: It cannot be fetched.
    """
    cache = platformdirs.user_cache_path("es-ttc") / "downloads"
    name = f"META-INF/resources/webjars/mermaid/{MERMAID.artifact.version}/dist/mermaid.min.js"
    with zipfile.ZipFile(maven.fetch([MERMAID], cache)[MERMAID.artifact]) as jar:
        (folder / "docs" / "assets" / "mermaid.min.js").write_bytes(jar.read(name))


class _Pages:
    """Copies files page by page: those of docs/ to their own place, others below `repository/`."""

    def __init__(self, root: Path, staged: Path) -> None:
        self._root = root
        self._docs = root / "docs"
        self._staged = staged
        self._problems: list[str] = []

    def stage(self, listed: set[str]) -> list[str]:
        """Copy docs/, what the navigation lists and what they link to; return the links that lead nowhere."""
        waiting = [path for path in self._docs.rglob("*") if path.suffix in (".md", ".svg", ".png")]
        waiting += [self._root / page.removeprefix(f"{OUTSIDE}/") for page in listed if page.startswith(OUTSIDE)]
        seen = set(waiting)
        while waiting:
            for target in self._copy(waiting.pop()):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return self._problems

    def place(self, path: Path) -> Path:
        """Return where a file of the repository is on the site."""
        if path.is_relative_to(self._docs):
            return self._staged / path.relative_to(self._docs)
        return self._staged / OUTSIDE / path.relative_to(self._root)

    def _copy(self, path: Path) -> Iterator[Path]:
        """Copy one file; yield the other files that it links to."""
        place = self.place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copy(path, place)
            return
        targets: list[Path] = []

        def change(match: re.Match[str]) -> str:
            target = (path.parent / match[0]).resolve()
            if not target.is_file() or not target.is_relative_to(self._root):
                self._problems.append(f"{path.relative_to(self._root)}: [{match[0]}] is no file of the repository")
                return match[0]
            targets.append(target)
            return Path(os.path.relpath(self.place(target), place.parent)).as_posix()

        text = path.read_text(encoding="utf-8")
        place.write_text("".join(_for_python_markdown(_with_links(text, change))), encoding="utf-8")
        yield from targets


def _with_links(text: str, change: Callable[[re.Match[str]], str]) -> Iterator[tuple[str, bool]]:
    """Yield each line, with its links changed unless it is code, and whether it is in a block of code at the margin."""
    fence = ""
    for line in text.splitlines(keepends=True):
        if found := _FENCE.match(line):
            fence = "" if fence else found[0]
        code = bool(fence or found)
        yield line if code else _LINK.sub(change, line), code and not (fence or line).startswith(" ")


def _for_python_markdown(lines: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """Yield each line as Python-Markdown, which the generator uses, needs it to mean what CommonMark means.

    It wants what belongs to a list item indented by four columns, and shows the escape in the code of a table's cell.
    """
    for line, at_margin in lines:
        if line.startswith("   ") and not at_margin:
            yield f" {line}"
        elif line.startswith("|"):
            yield _CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
        else:
            yield line


def _missing_in_navigation(staged: Path, listed: set[str]) -> Iterator[str]:
    """Yield a sentence for each page that no reader finds: decision records are reached from their list."""
    for path in sorted(staged.rglob("*.md")):
        page = path.relative_to(staged)
        if page.as_posix() not in listed and page.parts[0] not in (RECORDS, OUTSIDE):
            yield f"docs/{page} is not in the navigation: add it to docs/site/zensical.toml"


def _leaves(navigation: Any) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    else:
        for item in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from _leaves(item)
