"""Programs of a worker that end with it: a Redis, and the process that encodes.

A program runs below ``python -m es_ttc.enrichment.jobs.supervised``, which ends it when its own standard input does. So
the program does not outlive the process that started it, even if that is killed.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType, TracebackType
from typing import Self

logger = logging.getLogger(__name__)

_STOP_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_RESTART_SECONDS = 2.0


class SupervisedProgram:
    """A program that runs during the block; if it dies, it is started again."""

    def __init__(
        self, command: Sequence[str], name: str, environment: Mapping[str, str] | None = None, *, quiet: bool = False
    ) -> None:
        self._command = [sys.executable, "-m", "es_ttc.enrichment.jobs.supervised", *command]
        self._name = name
        self._environment = environment
        self._output = subprocess.DEVNULL if quiet else None
        self._ending = threading.Event()
        self._watch = threading.Thread(target=self._keep_alive, name=name, daemon=True)

    @property
    def has_ended(self) -> bool:
        """Whether the program does not run at present."""
        return self._process.poll() is not None

    def __enter__(self) -> Self:
        """Start it."""
        self._process = self._start()
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop it."""
        self._ending.set()
        self._watch.join()
        self._stop()

    def _stop(self) -> None:
        """End the program; kill it if it takes too long."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(2 * _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - our own caller names it
            self._command, stdin=subprocess.PIPE, stdout=self._output, env=self._environment
        )

    def _keep_alive(self) -> None:
        while not self._ending.wait(_LOOK_SECONDS):
            if not self.has_ended:
                continue
            logger.warning("%s has died and is started again", self._name)
            self._stop()
            if not self._ending.wait(_RESTART_SECONDS):
                self._process = self._start()


def main() -> int:
    """Run the program and return its exit status."""
    # In its own session, because a terminal sends Ctrl-C to all processes of its session's foreground group.
    process = subprocess.Popen(  # noqa: S603 - our own caller names it
        sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True
    )

    def end(_: int, __: FrameType | None) -> None:
        process.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent process

    def watch() -> None:
        while os.read(0, 4096):  # not through sys.stdin, whose lock a thread must not hold when Python ends
            pass
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()

    threading.Thread(target=watch, daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
