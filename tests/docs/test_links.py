"""Every relative link in the Markdown pages leads to a file, and every heading that is linked to exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(file), f"{page.name} links to {target}"


def test_files_of_the_architecture_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    folder, _, picture = page.partition("```text\n")[2].partition("```")[0].partition("\n")
    names = re.findall(r"^ +((?:[\w/]+(?:\.py|/)  ?)+)", picture, flags=re.MULTILINE)
    files = [ROOT / folder / name for line in names for name in line.split()]
    assert len(files) > 30
    assert [path for path in files if not path.exists()] == []
