"""Write the checksums of a version's artifacts, downloaded again: ``python -m es_ttc.engine.node.lock 3.5.0``."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import orjson

from es_ttc.common.files import sha256, write_atomically
from es_ttc.common.maven import DOWNLOAD_CONNECTIONS, Artifact, Pinned, download
from es_ttc.engine.node.parts import VERSIONS, lock_file, read_parts


def pin(artifact: Artifact) -> Pinned:
    """Download an artifact and return its checksum and size."""
    with tempfile.TemporaryDirectory() as folder:
        path = download(artifact, Path(folder))
        return Pinned(artifact, sha256(path), path.stat().st_size)


@click.command()
@click.argument("version", type=click.Choice(VERSIONS))
def main(version: str) -> None:
    """Download every artifact of an OpenSearch version and write the lock file."""
    with ThreadPoolExecutor(DOWNLOAD_CONNECTIONS) as pool:
        pins = list(pool.map(pin, read_parts(version).artifacts))
    entries = {str(entry.artifact): {"sha256": entry.sha256, "size": entry.size} for entry in pins}
    path = lock_file(version)
    write_atomically(path, orjson.dumps(entries, option=orjson.OPT_INDENT_2).decode() + "\n")
    click.echo(f"{len(pins)} artifacts, {sum(entry.size for entry in pins):,} bytes: {path.name}")


if __name__ == "__main__":
    main()
