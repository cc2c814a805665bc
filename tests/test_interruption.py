"""SIGTERM is handled like Ctrl-C, between the steps of an event loop."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from es_ttc.common.interruption import InterruptibleRunner, interruptible


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["ctrl-c heard", "ctrl-c ignored"])
def _ctrl_c(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


pytestmark = pytest.mark.usefixtures("_ctrl_c")


def test_a_coroutine_is_cancelled_between_its_steps() -> None:
    steps: list[str] = []

    async def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        steps.append("this step is not interrupted")
        try:
            await asyncio.sleep(60)
        finally:
            steps.append("cleaned up")

    async def after() -> str:
        return "the runner can be used again"

    with interruptible(), InterruptibleRunner() as runner:
        with pytest.raises(KeyboardInterrupt):
            runner.run(work())
        assert runner.run(after())
    assert steps == ["this step is not interrupted", "cleaned up"]


def test_a_loop_that_waits_is_woken() -> None:
    killer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    with interruptible(), InterruptibleRunner() as runner:
        killer.start()
        with pytest.raises(KeyboardInterrupt):
            runner.run(asyncio.sleep(60))
    killer.join()


def test_a_signal_in_the_last_step_is_not_lost() -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGTERM)

    with interruptible(), InterruptibleRunner() as runner, pytest.raises(KeyboardInterrupt):
        runner.run(work())


def test_other_code_gets_a_keyboard_interrupt_and_the_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_coroutine_that_cancels_itself_is_not_interrupted() -> None:
    async def work() -> None:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    with interruptible(), InterruptibleRunner() as runner, pytest.raises(asyncio.CancelledError):
        runner.run(work())


def test_without_the_context_it_is_asyncios_runner() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def handler() -> Any:
        return signal.getsignal(signal.SIGTERM)

    with InterruptibleRunner() as runner:
        assert runner.run(handler()) == before


def test_runner_in_another_thread_is_asyncios() -> None:
    async def handler() -> Any:
        return signal.getsignal(signal.SIGTERM)

    def work() -> Any:
        with InterruptibleRunner() as runner:
            return runner.run(handler())

    with interruptible(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() is signal.getsignal(signal.SIGTERM)
