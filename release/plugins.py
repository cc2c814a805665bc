"""Build the plugins' zips for given engines: `python release/plugins.py --opensearch 3.5.0 --elasticsearch FOLDER`.

A plugin fits one version of its engine. That for OpenSearch is compiled with the jars of the Maven repository; that for
Elasticsearch with those of an installation, because not every release is in a public repository, and the installation
says which version it is. JAVA_HOME must be a JDK of version 21 or newer.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "plugin"
_JARS = {"elasticsearch": "elasticsearch", "elasticsearch.lucene": "lucene-core", "elasticsearch.log4j": "log4j-api"}


def of_installation(home: Path) -> list[str]:
    """Return Maven's properties for an installation of Elasticsearch.

    Raises:
        ValueError: The folder is none.
    """
    properties = [f"-Delasticsearch.home={home.resolve()}"]
    for name, jar in _JARS.items():
        named = [re.fullmatch(rf"{jar}-(\d.*)\.jar", path.name) for path in home.glob(f"lib/{jar}-*.jar")]
        found = [match[1] for match in named if match]
        if len(found) != 1:
            raise ValueError(f"[{home}] is no installation of Elasticsearch: one lib/{jar}-VERSION.jar must be there")
        properties.append(f"-D{name}.version={found[0]}")
    return properties


def build(opensearch: str | None, elasticsearch: Path | None, further: Sequence[str] = ()) -> list[Path]:
    """Build and test the plugins, and return their zips.

    Args:
        opensearch: Version of OpenSearch; None: that of the tests.
        elasticsearch: Folder of an installation; None: no plugin for Elasticsearch.
        further: Further arguments of Maven.

    Raises:
        ValueError: There is no Maven, the folder is no installation, or the build fails.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise ValueError("there is no mvn on the PATH: install Maven")
    properties = [f"-Dopensearch.version={opensearch}"] if opensearch else []
    properties += of_installation(elasticsearch) if elasticsearch else []
    command = [maven, "-B", "-q", "-f", str(SOURCES), *further, "clean", "package", *properties]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise ValueError(f"the build failed:\n{done.stdout[-4000:]}")
    products = ["opensearch", *(["elasticsearch"] if elasticsearch else [])]
    return [path for product in products for path in sorted((SOURCES / product / "target").glob("es-ttc-*.zip"))]


def main() -> None:
    """Build for the engines that the command line names, and print the zips."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--opensearch", metavar="VERSION", help="Version of OpenSearch. Default: that of the tests.")
    parser.add_argument("--elasticsearch", metavar="FOLDER", type=Path, help="Installation of Elasticsearch.")
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="Folder to copy the zips to.")
    given = parser.parse_args()
    try:
        zips = build(given.opensearch, given.elasticsearch)
    except ValueError as error:
        sys.exit(str(error))
    for path in zips:
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
        print(shutil.copy2(path, given.out) if given.out else path)  # noqa: T201


if __name__ == "__main__":
    main()
