"""Processes for served programs: each runs one program, and some are kept from window to window.

A window is ranked by a process that no other window uses meanwhile. If a program fails, takes too long or is cancelled
(its request has reached its deadline), its process is ended; the next window gets another one, which was started ahead.
"""

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from es_ttc.common.cancellable_calls import Call, current
from es_ttc.errors import ConfigurationError
from es_ttc.rescorers.programs.interface import Context, Program, ProgramError
from es_ttc.rescorers.programs.source import RefusalReason, Refused, check
from es_ttc.sandbox import confinement
from es_ttc.sandbox.process import Process, ProcessLimits, ProgramInputs, SharedMoments
from es_ttc.sandbox.shared import Shared, SharedChunks, SharedTexts
from es_ttc.vectors.chunks import Granularity
from es_ttc.vectors.tokens import Float32

_WINDOWS_CPU = 60  # processor time of a process, as a multiple of one window's; it is replaced at half of it
_BATCH = 64  # number of texts encoded between two checks of the clock
_STATUS = Path("/proc/self/statm")
_START_SECONDS = 60.0
_STOPPING = "programs are not served any more: the gateway is stopping"
_GIVEN_UP = "nobody waited any longer"


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Resource limits of served programs: for one window, of a process besides the interpreter, of idle processes."""

    seconds: float = 10.0
    memory_mb: int = 512
    processes: int = 4

    @property
    def allowance(self) -> ProcessLimits:
        """The limits of each process."""
        return ProcessLimits(self.memory_mb, int(self.seconds * _WINDOWS_CPU))


class ProgramProcessPool:
    """Runs programs in processes of their own; a process is started at the first call of a program."""

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Process]] = []
        self._busy: set[Process] = set()
        self._spare: Future[Process] | None = None
        # The kernel ends a process with the thread that started it: this one lives as long as they may.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="es-ttc-programs")
        self._closed = False

    def require(self) -> None:
        """Raise an error if the machine does not support the limits."""
        if not _STATUS.exists():
            raise ConfigurationError("promoted programs run in processes that need Linux: leave [programs] empty here")
        confinement.seccomp()

    def program(self, source: str) -> Program:
        """Return a promoted program as a function that runs it in a process."""
        check(source)

        def program(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001 - the child computes S
            try:
                return self._ranked(source, Q, D, ctx)
            except Refused as refused:
                raise ProgramError(f"the program was ended: {refused}") from refused

        return program

    def close(self) -> None:
        """End all processes; programs cannot be called any more."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            spare, self._spare = self._spare, None
            for process in self._busy:  # a caller that waits for one closes it
                process.kill(_STOPPING)
        for _, process in idle:
            process.close()
        if spare is not None:
            _close_started(spare)
        self._starter.shutdown()

    def _ranked(self, source: str, queries: Float32, documents: Float32, context: Context) -> Float32:
        call = current()
        end = time.monotonic() + self._limits.seconds
        process = self._idle_process(source) or self._begun(source, call)
        try:
            with self._lock:
                if self._closed:
                    raise ProgramError(_STOPPING)
                self._busy.add(process)
            with call.ending(lambda: process.kill(_GIVEN_UP)):
                window = _WindowInputs(queries, documents, context, call, end)
                scores, _ = process.rank(window.inputs(), window, self._limits.seconds, context.record)
        except BaseException:
            process.close()
            raise
        finally:
            with self._lock:
                self._busy.discard(process)
            self._start_spare()  # not earlier, because it would take processor time from this window
        self._keep(source, process)
        return scores

    def _idle_process(self, source: str) -> Process | None:
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] == source:
                    return self._idle.pop(place)[1]
        return None

    def _keep(self, source: str, process: Process) -> None:
        """Keep a process for the next window, unless it has used many resources; drop the least recently used one."""
        spent = process.spent > self._limits.allowance.cpu_seconds / 2
        with self._lock:
            if self._closed or spent:
                over = [process]
            else:
                self._idle.append((source, process))
                cut = max(0, len(self._idle) - self._limits.processes)
                over, self._idle = [one for _, one in self._idle[:cut]], self._idle[cut:]
        for one in over:
            one.close()

    def _begun(self, source: str, call: Call) -> Process:
        """Return a process with its program, from the one that was started ahead."""
        process = self._started(call)
        try:
            with call.ending(lambda: process.kill(_GIVEN_UP)):
                process.begin(source, self._limits.seconds)
        except BaseException:
            process.close()
            raise
        return process

    def _started(self, call: Call) -> Process:
        """Return a process without a program: the one that was started ahead, or a new one."""
        with self._lock:
            if self._closed:
                raise ProgramError(_STOPPING)
            starting, self._spare = self._spare or self._starter.submit(_start, self._limits.allowance), None
        either: list[Future[Any]] = [starting, call.given_up]
        done, _ = wait(either, _START_SECONDS, FIRST_COMPLETED)
        if starting in done:
            return starting.result()
        self._keep_spare(starting)
        raise Refused(RefusalReason.TIME, "its process was not there in time")

    def _start_spare(self) -> None:
        with self._lock:
            if self._spare is None and not self._closed:
                self._spare = self._starter.submit(_start, self._limits.allowance)

    def _keep_spare(self, starting: "Future[Process]") -> None:
        """Keep for the next window a process for which this one could not wait."""
        with self._lock:
            if self._spare is None and not self._closed:
                self._spare = starting
                return
        _close_started(starting)


def _start(allowance: ProcessLimits) -> Process:
    process = Process(allowance)
    try:
        process.await_ready()
    except BaseException:
        process.close()
        raise
    return process


def _close_started(starting: "Future[Process]") -> None:
    def close(done: "Future[Process]") -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    starting.cancel()
    starting.add_done_callback(close)


class _WindowInputs:
    """The data of a window for a program."""

    def __init__(self, queries: Float32, documents: Float32, context: Context, call: Call, end: float) -> None:
        self._queries = queries
        self._documents = documents
        self._context = context
        self._call = call
        self._end = end

    def inputs(self) -> ProgramInputs:
        """Return the inputs that are sent at once."""
        moments = self._context.calibration
        return ProgramInputs(
            self._context.query_texts,
            _shared(self._queries),
            _shared(self._documents),
            (len(self._queries), *self._documents.shape),
            None
            if moments is None
            else SharedMoments(_shared(moments.mean), _shared(moments.factor), len(moments.factor), moments.size),
        )

    def chunks(self, granularity: Granularity) -> SharedChunks:
        """Return the documents' chunks, from the index if it has them."""
        chunks = self._context.chunks(granularity)
        return SharedChunks(_shared(chunks.vectors), Shared.of(chunks.starts.astype(np.int64)), len(chunks.vectors))

    def chunk_texts(self, granularity: Granularity) -> SharedTexts:
        """Return the chunks' texts."""
        return SharedTexts.of(self._context.chunks(granularity).texts)

    def document_texts(self) -> SharedTexts:
        """Return the documents' texts."""
        return SharedTexts.of(self._context.doc_texts)

    def view(self, adapter: str, max_length: int | None) -> Shared:
        """Return the documents under another adapter, from the index if it has them."""
        return _shared(self._context.view(self._documents, adapter, max_length))

    def encode(self, texts: list[str], adapter: str, dimensions: int | None, max_length: int | None) -> Float32:
        """Return the texts' vectors."""
        dims = self._documents.shape[1]
        parts = [np.zeros((0, min(dimensions or dims, dims)), np.float32)]
        for start in range(0, len(texts), _BATCH):
            if self._call.given_up.done() or time.monotonic() > self._end:
                raise Refused(RefusalReason.TIME, "longer than a program may take")
            batch = texts[start : start + _BATCH]
            parts.append(self._context.encode_fn(batch, adapter, dimensions, max_length))
        return np.concatenate(parts)


def _shared(values: Float32) -> Shared:
    return Shared.of(values.astype(np.float32, copy=False))
