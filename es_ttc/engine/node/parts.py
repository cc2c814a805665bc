"""The parts of a node, from `opensearch-VERSION.toml`, with their checksums from `opensearch-VERSION.lock.json`."""

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from es_ttc.common.maven import Artifact, Pinned

NODE_FOLDER = Path(__file__).parent
VERSIONS = ("3.5.0", "2.19.1")  # the default first: those whose k-NN plugin package registries have
DEFAULT_VERSION = VERSIONS[0]


Coordinates = Annotated[Artifact, BeforeValidator(Artifact.parse)]


class NodePart(BaseModel):
    """One folder of the node's home, a ``[[part]]`` of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str = Field(description="Path below the home: `lib`, `modules/NAME` or `plugins/NAME`.")
    artifacts: tuple[Coordinates, ...] = Field(description="Jars to place there; a zip is unpacked.")
    classname: str = Field("", description="The plugin's class; none for `lib`, which is no plugin.")
    extends: str = Field("", description="The module whose classes it extends.")
    policy: str = Field("", description="Text of its policy for Java's security manager.")

    def descriptor(self, version: str, java: str) -> str:
        """Return the text of ``plugin-descriptor.properties`` for a version of the product and one of Java."""
        name = Path(self.folder).name
        fields = {
            "description": name,
            "name": name,
            "version": version,
            "opensearch.version": version,
            "java.version": java,
            "classname": self.classname,
            "extended.plugins": self.extends,
        }
        return "".join(f"{key}={value}\n" for key, value in fields.items())


class JavaNeeds(BaseModel):
    """The Java that a version runs on."""

    oldest: int
    newest: int | None = None
    descriptor: str = Field(description="The release that the version's plugins are built for.")
    options: tuple[str, ...] = Field((), description="Options in addition to those of every node.")


class Parts(BaseModel):
    """All parts of a node, its product version, and the Java that it needs."""

    version: str
    java: JavaNeeds
    parts: tuple[NodePart, ...] = Field(alias="part")

    @property
    def artifacts(self) -> list[Artifact]:
        """Every artifact once, in order."""
        return sorted({artifact for part in self.parts for artifact in part.artifacts})


def parts_file(version: str) -> Path:
    """Return the file that lists the parts of a version."""
    return NODE_FOLDER / f"opensearch-{version}.toml"


def lock_file(version: str) -> Path:
    """Return the file with the checksums of a version's parts."""
    return NODE_FOLDER / f"opensearch-{version}.lock.json"


def read_parts(version: str = DEFAULT_VERSION) -> Parts:
    """Read the parts of a version."""
    return Parts.model_validate(tomllib.loads(parts_file(version).read_text()))


def read_lock(version: str = DEFAULT_VERSION) -> dict[Artifact, Pinned]:
    """Read the checksums of a version."""
    pins = orjson.loads(lock_file(version).read_bytes())
    found = [Pinned(Artifact.parse(coordinates), pin["sha256"], pin["size"]) for coordinates, pin in pins.items()]
    return {pin.artifact: pin for pin in found}


def file_digest(version: str = DEFAULT_VERSION) -> str:
    """Return a short digest of both files: a home built from other parts is in another folder."""
    return hashlib.sha256(parts_file(version).read_bytes() + lock_file(version).read_bytes()).hexdigest()[:12]
