"""Commands of es-ttc in processes forked from one that has imported what they need: no start takes seconds."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *("es_ttc.cli.attach", "es_ttc.cli.ingest", "es_ttc.index.attach", "es_ttc.index.ingest"),
        *("es_ttc.encoders.onnx", "es_ttc.engine.connect", "es_ttc.encoders.openvino_graph"),
    ]
)


def command(arguments: Sequence[str], folder: Path, environment: dict[str, str], log: Path) -> ForkServerProcess:
    """Start a command of `es-ttc` in a folder; what it prints goes to a file."""
    process = _FORKS.Process(target=_run, args=(list(arguments), str(folder), environment, str(log)))
    process.start()
    return process


def _run(arguments: list[str], folder: str, environment: dict[str, str], log: str) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(written, stream)
    from es_ttc.cli.app import run

    sys.exit(run(arguments))
