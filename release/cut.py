"""Cut a release: `python release/cut.py 0.2.0` writes the version and the day where they stand.

The version stands in `pyproject.toml`; Maven's files and the name of the plugins' archives need it too. A test compares
them. The changelog's first section, of the version `(unreleased)`, gets the day.
"""

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = re.compile(r"^## (\S+) \(unreleased\)$", re.MULTILINE)
PLACES = {
    "pyproject.toml": r'(?m)^name = "es-ttc"\nversion = "([^"]+)"$',
    "plugin/pom.xml": r"<artifactId>es-ttc-plugin</artifactId>\s*<version>([^<]+)</version>",
    **{
        f"plugin/{module}/pom.xml": r"<artifactId>es-ttc-plugin</artifactId>\s*<version>([^<]+)</version>"
        for module in ("core", "lucene", "opensearch", "elasticsearch")
    },
    "docker/plugin.Dockerfile": r"/es-ttc-[a-z]+-[\d.]+-([^-/]+)\.zip",
    "docs/how-to/use-the-plugin.md": r"/es-ttc-[a-z]+-[\d.]+-([^-/]+)\.zip",
}
"""Files that name the version, each with a pattern of its places."""


def versions(root: Path = ROOT) -> dict[str, set[str]]:
    """Return by file the versions that it names; an empty set where the pattern does not match any more."""
    return {name: set(re.findall(pattern, (root / name).read_text("utf-8"))) for name, pattern in PLACES.items()}


def cut(version: str, day: datetime.date, root: Path = ROOT) -> None:
    """Write a version and its day.

    Raises:
        ValueError: The version is no number of the form 1.2.3, or the changelog has no section for it.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"version [{version}] must have the form 1.2.3")
    log = root / "CHANGELOG.md"
    text = log.read_text("utf-8")
    found = UNRELEASED.search(text)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section [## {version} (unreleased)]: write one")
    log.write_text(text[: found.start()] + f"## {version} ({day.isoformat()})" + text[found.end() :], "utf-8")
    for name, pattern in PLACES.items():
        path = root / name
        path.write_text(_replaced(path.read_text("utf-8"), pattern, version), "utf-8")


def _replaced(text: str, pattern: str, version: str) -> str:
    for found in reversed([*re.finditer(pattern, text)]):
        text = text[: found.start(1)] + version + text[found.end(1) :]
    return text


def main() -> None:
    """Cut the version that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    try:
        cut(parser.parse_args().version, datetime.datetime.now(datetime.UTC).date())
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
