"""A child process that answers calls, one at a time.

Each child has a pipe of its own, so that the end of one, at whatever moment, is the end of its own calls only. A
:class:`~concurrent.futures.ProcessPoolExecutor` shares its queues: it can wait for ever when a process is killed while
another one starts.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Generic, TypeVar, cast

from es_ttc.common.parent_process import end_with_parent

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


class ChildProcessEnded(Exception):
    """A child process ended before it answered."""


class ChildProcess(Generic[Argument, Answer]):
    """A child process, started when it is made.

    Args:
        make: Returns the function that answers calls; the child makes it for the first call. It must be possible to
            pickle ``make``, arguments, answers and errors.
    """

    def __init__(self, make: Callable[[], Callable[[Argument], Answer]]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_answer_calls, args=(theirs, make), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = self._process.pid

    def call(self, argument: Argument) -> Answer:
        """Return the child's answer; one thread may call at a time.

        Raises:
            ChildProcessEnded: The child has ended.
            Exception: What the function raised, with the child's traceback as its note.
        """
        try:
            self._connection.send(argument)
            answer, error = self._connection.recv()
        except (EOFError, OSError) as ended:
            raise ChildProcessEnded(f"process {self.pid}") from ended
        if error is not None:
            raise error
        return cast("Answer", answer)

    def kill(self) -> None:
        """End the child, whatever it does; a call that waits raises :class:`ChildProcessEnded`."""
        self._process.kill()
        self._process.join()


def _answer_calls(connection: Connection, make: Callable[[], Callable[[Argument], Answer]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which ends this process
    end_with_parent()
    function: Callable[[Argument], Answer] | None = None
    while True:
        try:
            argument = connection.recv()
        except EOFError:
            return
        try:
            function = function or make()
            reply: tuple[Answer | None, Exception | None] = (function(argument), None)
        except Exception as error:  # noqa: BLE001 - whatever the function raises is the call's outcome
            error.add_note(f"in a child process:\n{traceback.format_exc()}")
            reply = (None, error)
        try:
            connection.send(reply)
        except OSError:  # the parent has ended
            return
