import os
import threading
import time

import pytest

from es_ttc.rescorers import threads


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "processor_count", lambda: 4)
    monkeypatch.setattr(threads, "_pool", None)


def test_every_item_is_worked_on_once() -> None:
    done: list[int] = []
    threads.share(done.append, range(1000))
    assert sorted(done) == list(range(1000))


def test_several_threads_take_part() -> None:
    met = threading.Barrier(4)
    threads.share(lambda _: met.wait(10), range(4))
    assert met.broken is False


def test_a_single_item_is_done_here() -> None:
    seen: list[str] = []
    threads.share(lambda _: seen.append(threading.current_thread().name), [1])
    assert seen == [threading.current_thread().name]


def test_threads_without_items_return_nothing() -> None:
    threads.share(pytest.fail, [])


@pytest.mark.parametrize("wrong", [0, 7])
def test_an_error_is_raised_here_and_ends_the_rest(wrong: int) -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == wrong:
            raise ValueError("this one")
        time.sleep(0.001)
        done.append(item)

    with pytest.raises(ValueError, match="this one"):
        threads.share(work, range(10_000))
    assert len(done) < 10_000


def test_helpers_that_are_busy_are_not_waited_for() -> None:
    release = threading.Event()
    busy = threading.Thread(target=threads.share, args=(lambda _: release.wait(30), range(4)))
    busy.start()
    try:
        done: list[int] = []
        threads.share(done.append, range(10))
        assert sorted(done) == list(range(10))
    finally:
        release.set()
        busy.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are for systems that have them")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_helpers_of_its_own() -> None:
    threads.share(lambda _: time.sleep(0.01), range(4))
    child = os.fork()
    if not child:
        met = threading.Barrier(4)
        try:
            threads.share(lambda _: met.wait(5), range(4))
        finally:
            os._exit(int(met.broken))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
