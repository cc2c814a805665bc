"""A Maven repository of a test's own: files on disk behind HTTP."""

import gc
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from es_ttc.common.maven import Artifact


class Repository:
    """A Maven repository on disk behind HTTP.

    Attributes:
        asked: Names of the files that were requested, in order.
    """

    def __init__(self, folder: Path, content: Mapping[Artifact, bytes]) -> None:
        self.asked: list[str] = []
        self.folder = folder
        for artifact, data in content.items():
            path = self.path(artifact)
            path.parent.mkdir(parents=True)
            path.write_bytes(data)

    def path(self, artifact: Artifact) -> Path:
        """Return an artifact's file."""
        return self.folder.joinpath(*artifact.group.split("."), artifact.name, artifact.version, artifact.filename)


@contextmanager
def serving(repository: Repository) -> Iterator[str]:
    """Serve a repository, and yield its address."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            if not self.path.endswith(".sha1"):
                repository.asked.append(Path(self.path).name)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(repository.folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()  # jgo leaves the connections of failed answers to the collector.
