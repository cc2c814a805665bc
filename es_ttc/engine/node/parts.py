"""The parts of a node, from `opensearch.toml`, with their checksums from `opensearch.lock.json`."""

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

FOLDER = Path(__file__).parent
PARTS_FILE = FOLDER / "opensearch.toml"
LOCK_FILE = FOLDER / "opensearch.lock.json"


@dataclass(frozen=True, slots=True, order=True)
class Artifact:
    """A file of a Maven repository, written ``group:name:version`` or ``group:name:version:packaging``."""

    group: str
    name: str
    version: str
    packaging: str = "jar"

    @classmethod
    def parse(cls, coordinates: str) -> Self:
        """Parse ``group:name:version[:packaging]``."""
        group, name, version, *packaging = coordinates.split(":")
        return cls(group, name, version, *packaging)

    def __str__(self) -> str:
        return ":".join((self.group, self.name, self.version, self.packaging))

    @property
    def filename(self) -> str:
        """The file's name, the same in the repository, the cache and the node's home."""
        return f"{self.name}-{self.version}.{self.packaging}"


@dataclass(frozen=True, slots=True)
class Pinned:
    """An artifact with a pinned checksum.

    Attributes:
        artifact: The artifact.
        sha256: Checksum of the file, hexadecimal.
        size: The file's size in bytes.
    """

    artifact: Artifact
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Part:
    """One folder of the node's home.

    Attributes:
        folder: Path below the home: ``lib``, ``modules/NAME`` or ``plugins/NAME``.
        artifacts: Jars to place there; a zip is unpacked.
        classname: The plugin's class; "" for ``lib``, which is no plugin.
        extends: Name of the module whose classes it extends, or "".
    """

    folder: str
    artifacts: tuple[Artifact, ...]
    classname: str = ""
    extends: str = ""

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> Self:
        """Parse one ``[[part]]``."""
        return cls(
            folder=entry["folder"],
            artifacts=tuple(Artifact.parse(artifact) for artifact in entry["artifacts"]),
            classname=entry.get("classname", ""),
            extends=entry.get("extends", ""),
        )

    def descriptor(self, version: str) -> str:
        """Return the text of ``plugin-descriptor.properties``."""
        name = Path(self.folder).name
        fields = {
            "description": name,
            "name": name,
            "version": version,
            "opensearch.version": version,
            "java.version": "21",
            "classname": self.classname,
            "extended.plugins": self.extends,
        }
        return "".join(f"{key}={value}\n" for key, value in fields.items())


@dataclass(frozen=True, slots=True)
class Parts:
    """All parts of a node, and its product version."""

    version: str
    parts: tuple[Part, ...]

    @property
    def artifacts(self) -> list[Artifact]:
        """Every artifact once, in order."""
        return sorted({artifact for part in self.parts for artifact in part.artifacts})


def read_parts() -> Parts:
    """Read `opensearch.toml`."""
    data = tomllib.loads(PARTS_FILE.read_text())
    return Parts(version=data["version"], parts=tuple(Part.from_dict(entry) for entry in data["part"]))


def read_lock() -> dict[Artifact, Pinned]:
    """Read `opensearch.lock.json`."""
    pins: dict[str, dict[str, Any]] = orjson.loads(LOCK_FILE.read_bytes())
    return {
        artifact: Pinned(artifact, pin["sha256"], pin["size"])
        for artifact, pin in ((Artifact.parse(coordinates), pin) for coordinates, pin in pins.items())
    }


def digest() -> str:
    """Return a short digest of both files: a home built from other parts is in another folder."""
    return hashlib.sha256(PARTS_FILE.read_bytes() + LOCK_FILE.read_bytes()).hexdigest()[:12]
