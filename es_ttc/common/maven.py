"""Download pinned artifacts of Maven repositories into a cache: in parallel, verified by SHA-256, each at most once.

`jgo` knows the repositories, mirrors included: they are configured in jgo's own settings file.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from es_ttc.common.files import locked, make_folder, sha256, staging_folder
from es_ttc.errors import ConfigurationError, NodeError

DOWNLOAD_CONNECTIONS = 8
TIMEOUT_SECONDS = 60
DOWNLOAD_ATTEMPTS = 4


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
    """An artifact with a pinned checksum."""

    artifact: Artifact
    sha256: str
    size: int


ReportProgress = Callable[[int, int, str], None]
"""Takes the bytes that are done, those of all, and a sentence about the files."""


class _Corrupt(Exception):
    """The downloaded file is not the pinned one."""


def fetch(pins: Sequence[Pinned], cache: Path, on_progress: ReportProgress = lambda *_: None) -> dict[Artifact, Path]:
    """Return each artifact's file in the cache; download missing ones."""
    make_folder(cache)
    with locked(cache / "fetch.lock"):
        paths = {pin.artifact: cache / pin.artifact.group / pin.artifact.filename for pin in pins}
        missing = [pin for pin in pins if not paths[pin.artifact].is_file()]
        if missing:
            _fetch_all(missing, paths, on_progress)
        return paths


def download(artifact: Artifact, folder: Path, on_bytes: Callable[[int], None] | None = None) -> Path:
    """Download one artifact below an empty folder and return its path, without verification."""
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise ConfigurationError("package [jgo] is not installed: pip install 'es-ttc[node]'") from error

    @contextmanager
    def report(_filename: str, _size: int) -> Iterator[Callable[[int], None]]:
        yield on_bytes or (lambda _: None)

    context = MavenContext(
        resolver=PythonResolver(progress_callback=report),
        repo_cache=folder,
        remote_repos=repositories(),
        timeout=TIMEOUT_SECONDS,
    )
    component = context.project(artifact.group, artifact.name).at_version(artifact.version)
    path: Path = component.artifact(packaging=artifact.packaging).resolve()
    return path


def repositories() -> dict[str, str]:
    """Return the Maven repositories, by name: jgo's default and those in jgo's settings file."""
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL

    return {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}


def _fetch_all(pins: Sequence[Pinned], paths: dict[Artifact, Path], on_progress: ReportProgress) -> None:
    total = sum(pin.size for pin in pins)
    files = fetched = 0
    lock = threading.Lock()

    def report(more_bytes: int, more_files: int = 0) -> None:
        nonlocal files, fetched
        with lock:
            fetched += more_bytes
            files += more_files
            on_progress(fetched, total, f"{files} of {len(pins)} files")

    def fetch_one(pin: Pinned) -> None:
        _fetch_one(pin, paths[pin.artifact], report)
        report(0, 1)

    report(0)
    with ThreadPoolExecutor(DOWNLOAD_CONNECTIONS, thread_name_prefix="fetch") as pool:
        try:
            for _ in pool.map(fetch_one, pins):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _fetch_one(pin: Pinned, path: Path, on_bytes: Callable[[int], None]) -> None:
    import stamina
    from requests import RequestException

    arrived = 0

    def count(size: int) -> None:
        nonlocal arrived
        arrived += size
        on_bytes(size)

    try:
        # jgo raises RuntimeError for every answer but 200, so a busy repository looks like a missing file.
        for attempt in stamina.retry_context(on=(RequestException, RuntimeError, _Corrupt), attempts=DOWNLOAD_ATTEMPTS):
            with attempt, staging_folder(path) as folder:
                on_bytes(-arrived)
                arrived = 0
                staged = download(pin.artifact, folder, count)
                if (found := sha256(staged)) != pin.sha256:
                    raise _Corrupt(f"its SHA-256 is {found}, pinned is {pin.sha256}")
                staged.chmod(0o644)
                staged.replace(path)
    except (RequestException, RuntimeError, _Corrupt, OSError) as error:
        raise NodeError(f"could not fetch {pin.artifact}: {error}") from error
