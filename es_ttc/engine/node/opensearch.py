"""The OpenSearch node: built from the artifacts in its `.toml` file, in the layout of the official archive."""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from es_ttc.common import maven
from es_ttc.common.files import link_or_copy, locked, make_folder, publish, staging_folder, write_atomically
from es_ttc.common.maven import Artifact
from es_ttc.engine.node import account, java, parts
from es_ttc.engine.node.archives import unpack_archive
from es_ttc.engine.node.distribution import Command, NodeFolder
from es_ttc.engine.node.java import Java
from es_ttc.engine.node.parts import NodePart
from es_ttc.engine.node.plugin import Plugin
from es_ttc.engine.node.spec import NodeProgress, NodeSpec, ProgressCallback
from es_ttc.errors import NodeError

DESCRIPTOR = "plugin-descriptor.properties"
POLICY = "plugin-security.policy"
VECTOR_MODULE = "jdk.incubator.vector"
CLASSES = "java-classes"  # the folder of archives of classes; the node's user writes to it
_OLDEST_WITH_ARCHIVES = 19


class OpenSearchDistribution:
    """OpenSearch with k-NN, downloaded and built at the first use."""

    product = "opensearch"

    def __init__(self, plugin: Plugin | None = None, version: str = parts.DEFAULT_VERSION) -> None:
        self.plugin = plugin
        self._parts = parts.read_parts(version)

    @property
    def version(self) -> str:
        """The product's version."""
        return self._parts.version

    def java(self) -> Java:
        """Return a Java that the version runs on."""
        return java.find_java(oldest=self._parts.java.oldest, newest=self._parts.java.newest)

    def install(self, base: Path, on_progress: ProgressCallback) -> Path:
        """Return the home; where there is none, download its artifacts and build it."""
        account.give(make_folder(base / CLASSES), account.run_as())
        home = base / "homes" / f"opensearch-{self.version}-{parts.file_digest(self.version)}"
        if home.exists():
            return home
        lock = parts.read_lock(self.version)
        unpinned = [artifact for artifact in self._parts.artifacts if artifact not in lock]
        if unpinned:
            raise NodeError(f"{unpinned[0]} is not pinned: run `python -m es_ttc.engine.node.lock {self.version}`")
        pins = [lock[artifact] for artifact in self._parts.artifacts]
        files = maven.fetch(
            pins,
            base / "artifacts",
            lambda done, total, files: on_progress(NodeProgress("fetch", done, total, files)),
        )
        with locked(make_folder(home.parent) / f"{home.name}.lock"):
            if not home.exists():
                build_home(self._parts, files, home)
        return home

    def settings(self) -> Mapping[str, str]:
        """Return the settings of the plugin; there are no others."""
        return {} if self.plugin is None else self.plugin.settings

    def configure(self, home: Path, folder: NodeFolder) -> None:  # noqa: ARG002 - the protocol has it
        """Add the plugin's token."""
        if self.plugin is not None:
            account.give(self.plugin.write_token(folder.config), account.run_as())

    def command(self, home: Path, folder: NodeFolder, java: Java, spec: NodeSpec) -> Command:
        """Return the command of the product's own start script."""
        vector = [f"--add-modules={VECTOR_MODULE}"] if VECTOR_MODULE in java.modules else []
        arguments = [
            str(java.executable),
            *spec.java_options,
            *self._parts.java.options,
            *([] if self.plugin else shared_classes(home, java)),
            f"-Djava.io.tmpdir={folder.temporary}",
            "-Djava.awt.headless=true",
            "-Dfile.encoding=UTF-8",
            "-Djna.nosys=true",
            "-Dio.netty.noUnsafe=true",
            "-Dlog4j.shutdownHookEnabled=false",
            "-Dlog4j2.disable.jmx=true",
            f"-Dopensearch.path.home={home}",
            f"-Dopensearch.path.conf={folder.config}",
            "-Dopensearch.distribution.type=tar",
            "-Dopensearch.bundled_jdk=false",
            "--enable-native-access=ALL-UNNAMED",
            *vector,
            "-cp",
            str(home / "lib" / "*"),
            "org.opensearch.bootstrap.OpenSearch",
        ]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        return Command(tuple(arguments), environment, folder.path)


def shared_classes(home: Path, java: Java) -> list[str]:
    """Return the options with which Java keeps the classes of a home that it has parsed, for the next start.

    The first node that stops takes a second more and writes 86 MB, and later ones start in 3.1 s of processor time in
    place of 5.2 s. Java checks that an archive is of the same Java and class path, and else replaces it. A home with a
    plugin is a node's own, so an archive of it would serve no other node.
    """
    if java.version < _OLDEST_WITH_ARCHIVES:
        return []
    runtime = sha256(str(java.home).encode()).hexdigest()[:8]
    archive = home.parent.parent / CLASSES / f"{home.name}-java{java.version}-{runtime}.jsa"
    return ["-XX:+AutoCreateSharedArchive", f"-XX:SharedArchiveFile={archive}"]


def build_home(node: parts.Parts, files: Mapping[Artifact, Path], home: Path) -> None:
    """Arrange the files as in the official archive; the home appears completely or not at all."""
    with staging_folder(home) as staging:
        make_folder(staging / "bin")  # the node requires it
        for part in node.parts:
            _build_part(part, node, files, staging)
        publish(staging, home)


def _build_part(part: NodePart, node: parts.Parts, files: Mapping[Artifact, Path], home: Path) -> None:
    folder = make_folder(home / part.folder)
    for artifact in part.artifacts:
        if artifact.packaging == "zip":
            unpack_archive(files[artifact], folder, without={DESCRIPTOR})  # the file written here describes the plugin
        else:
            link_or_copy(files[artifact], folder / artifact.filename)
    if part.classname:
        write_atomically(folder / DESCRIPTOR, part.descriptor(node.version, node.java.descriptor))
    if part.policy:
        write_atomically(folder / POLICY, part.policy)
