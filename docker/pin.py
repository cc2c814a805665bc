"""Base images by digest: `python docker/pin.py` names those without one and fails; with `--write` it pins them.

A tag can be moved to another image, a digest cannot. Writing asks the registries, through `docker buildx`; nothing else
here needs Docker. `make image` checks before it builds. Run it again, on lines without their digests, to take a newer
image of the same tag.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
_USED = re.compile(r"^(?:FROM\s+(?:--\S+\s+)?|\s*image:\s*)(?P<image>[^\s#]+)(?:\s+AS\s+(?P<stage>\S+))?", re.MULTILINE)
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}")


def files() -> list[Path]:
    """Return every file that names images."""
    return sorted([*FOLDER.glob("*Dockerfile"), *FOLDER.glob("*.yaml")])


def images(text: str) -> Iterator[str]:
    """Yield the images of others that a file names; those that we build have no tag, and stages are none."""
    stages = {found["stage"] for found in _USED.finditer(text)}
    for found in _USED.finditer(text):
        if ":" in found["image"] and found["image"] not in stages:
            yield found["image"]


def unpinned(text: str) -> list[str]:
    """Return the images of a file that have no digest."""
    return sorted({image for image in images(text) if not _DIGEST.search(image)})


def pinned(text: str, digests: dict[str, str]) -> str:
    """Return a file's text with the digests of its images."""

    def add(found: re.Match[str]) -> str:
        digest = digests.get(found["image"])
        return found[0].replace(found["image"], f"{found['image']}@{digest}") if digest else found[0]

    return _USED.sub(add, text)


def _digest(image: str) -> str:
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - names from our own files
    digest = done.stdout.strip()
    if done.returncode or not _DIGEST.fullmatch(f"@{digest}"):
        sys.exit(f"the digest of [{image}] could not be had: {done.stderr.strip() or digest}")
    return digest


def main() -> None:
    """Check, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="Ask the registries, and put the digests in.")
    write = parser.parse_args().write
    missing = {path: unpinned(path.read_text(encoding="utf-8")) for path in files()}
    names = sorted({image for some in missing.values() for image in some})
    if write:
        digests = {image: _digest(image) for image in names}
        for path in files():
            path.write_text(pinned(path.read_text(encoding="utf-8"), digests), encoding="utf-8")
    elif names:
        for path, some in missing.items():
            for image in some:
                sys.stderr.write(f"{path.relative_to(FOLDER.parent)}: [{image}] has no digest\n")
        sys.exit("pin them where the registries can be reached: python docker/pin.py --write")


if __name__ == "__main__":
    main()
