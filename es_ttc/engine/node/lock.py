"""Write `opensearch.lock.json` after a change of `opensearch.toml`: ``python -m es_ttc.engine.node.lock``.

Every artifact is downloaded again, so a checksum in the lock file is always that of the repository's file.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import orjson

from es_ttc.engine.node.artifacts import CONNECTIONS, download
from es_ttc.engine.node.files import sha256, write_atomically
from es_ttc.engine.node.parts import LOCK_FILE, Artifact, Pinned, read_parts


def pin(artifact: Artifact) -> Pinned:
    """Download an artifact and return its checksum and size."""
    with tempfile.TemporaryDirectory() as folder:
        path = download(artifact, Path(folder))
        return Pinned(artifact, sha256(path), path.stat().st_size)


def main() -> None:
    """Download every artifact of `opensearch.toml` and write the lock file."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        pins = list(pool.map(pin, read_parts().artifacts))
    entries = {str(entry.artifact): {"sha256": entry.sha256, "size": entry.size} for entry in pins}
    write_atomically(LOCK_FILE, orjson.dumps(entries, option=orjson.OPT_INDENT_2).decode() + "\n")
    click.echo(f"{len(pins)} artifacts, {sum(entry.size for entry in pins):,} bytes: {LOCK_FILE.name}")


if __name__ == "__main__":
    main()
