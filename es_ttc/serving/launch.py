"""The launch of `es-ttc serve`: its settings, as they are read by one process and passed to others.

As a program it reads the settings again: it takes a launch on standard input and writes another one.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, BinaryIO, NoReturn

from pydantic import ValidationError
from pydantic_settings import SettingsError

from es_ttc.errors import EsTtcError
from es_ttc.serving import supervisor
from es_ttc.serving.logs import configure_logs, log
from es_ttc.serving.process import SHARED_FOLDER
from es_ttc.settings import GatewaySettings, wrong_setting

_FIXED = ("host", "port", "workers")


def serve_with_workers(settings: GatewaySettings, listening: int, flags: Mapping[str, Any], further: str) -> NoReturn:
    """Become the process that keeps workers running until SIGINT or SIGTERM; SIGHUP replaces them.

    Args:
        settings: The settings.
        listening: The file descriptor of the socket.
        flags: The settings of the command line, which hold when the others are read again. Address and number of
            workers stay as they are.
        further: Name of the function that makes further routes in each worker, `module:function`; see
            :func:`~es_ttc.serving.app.create_app`.
    """
    os.environ[SHARED_FOLDER] = tempfile.mkdtemp(prefix="es-ttc-metrics-")
    with _unnamed_file() as file:
        file.write(packed(settings, flags, further))
        file.seek(0)
        for descriptor in (listening, file.fileno()):
            os.set_inheritable(descriptor, True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        command = supervisor.python(supervisor.__name__, listening, file.fileno(), settings.workers)
        os.execv(command[0], command)  # noqa: S606 - no shell is needed


def _unnamed_file() -> BinaryIO:
    """Return a file that ends with the processes that have it; in memory, because settings hold secrets."""
    if hasattr(os, "memfd_create"):  # on Linux
        return os.fdopen(os.memfd_create("es-ttc-launch"), "w+b")
    return tempfile.TemporaryFile()


def packed(settings: GatewaySettings, flags: Mapping[str, Any], further: str) -> bytes:
    """Return a launch."""
    return pickle.dumps((settings, flags, further))


def unpacked(launch: bytes) -> tuple[GatewaySettings, Mapping[str, Any], str]:
    """Return what was packed."""
    found: tuple[GatewaySettings, Mapping[str, Any], str] = pickle.loads(launch)  # noqa: S301 - by a parent process
    return found


def main() -> None:
    """Read the settings again; if they are wrong, say so and fail."""
    configure_logs()
    present, flags, further = unpacked(sys.stdin.buffer.read())
    try:
        settings = GatewaySettings(**flags).model_copy(update={name: getattr(present, name) for name in _FIXED})
    except (EsTtcError, SettingsError, ValidationError) as error:
        problem = str(error) if isinstance(error, EsTtcError) else wrong_setting(error)
        log.error("settings are wrong; nothing is replaced", problem=problem)
        sys.exit(1)
    sys.stdout.buffer.write(packed(settings, flags, further))


if __name__ == "__main__":
    main()
