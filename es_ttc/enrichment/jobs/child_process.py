"""Run a program that ends when this one's standard input does: ``python -m es_ttc.enrichment.jobs.child_process ...``.

So the program does not outlive the process that started it, even if that is killed.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

_STOP_SECONDS = 5.0


def tied(command: Sequence[str]) -> list[str]:
    """Return the command that runs a program so that it ends with this process; its standard input must be a pipe."""
    return [sys.executable, "-m", "es_ttc.enrichment.jobs.child_process", *command]


def stop(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a program that :func:`tied` started; kill it if it takes longer than some seconds."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(seconds)


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
