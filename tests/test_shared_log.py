"""The log in shared memory, with real processes: what one writes all read, and no process ever sees a torn record."""

import multiprocessing
import os
import random
import signal
from multiprocessing.connection import Connection

import numpy as np
import pytest

from es_ttc.common.shared_log import Record, SharedLog, make_shared_log

SPAWN = multiprocessing.get_context("spawn")
SEGMENT = 4096


def log_of(segments: int = 4) -> SharedLog:
    log = make_shared_log(SEGMENT * segments, processes=4, segments=segments)
    log.join()
    return log


def test_records_are_returned_as_they_were_written() -> None:
    log = log_of()
    written = [(b"a", b"first"), (b"bb", b""), (b"ccc", bytes(range(256)))]
    assert [(record.key, bytes(record.value)) for record in log.append(written)] == written
    assert not log.has_news()
    assert log.news() == []
    assert log.nbytes > 256


def test_a_view_is_read_only_and_aligned() -> None:
    (record,) = log_of().append([(b"odd", b"x" * 33)])
    array = np.frombuffer(record.value, np.uint8)
    assert not array.flags.writeable
    assert array.ctypes.data % 16 == 0


def test_a_record_larger_than_a_segment_is_left_out_and_the_next_is_not() -> None:
    log = log_of()
    records = log.append([(b"large", bytes(SEGMENT + 1)), (b"small", b"x")])
    assert [record.key for record in records] == [b"small"]


def test_a_segment_is_used_again_only_when_nothing_refers_to_its_records() -> None:
    log = log_of(segments=3)
    held = [np.frombuffer(record.value, np.uint8) for record in log.append([(b"0", b"\1" * 3000)])]
    kept: list[Record] = []
    for number in range(1, 3):
        kept = log.append([(str(number).encode(), bytes(3000))])
        assert [record.segment for record in kept] == [number]
    assert log.oldest == 1
    log.forget(0)
    assert log.append([(b"3", bytes(3000))]) == [], "the first segment is still referred to"
    assert held[0].all()
    held.clear()
    assert [record.segment for record in log.append([(b"3", bytes(3000))])] == [3]
    assert kept


def test_taking_part_needs_a_place() -> None:
    log = make_shared_log(SEGMENT * 4, processes=1, segments=4)
    with pytest.raises(RuntimeError, match="after join"):
        log.append([(b"a", b"b")])
    log.join()
    child, receive = started(log, _try_to_join)
    assert receive.recv() == "RuntimeError"
    child.join(30)


def test_a_process_that_starts_reads_what_is_there_and_its_own_records_are_read_here() -> None:
    log = log_of()
    log.append([(b"here", b"1")])
    log.set_flag(7)
    child, receive = started(log, _read_and_write)
    assert receive.recv() == ([(b"here", b"1"), (b"there", b"2")], [7, 3])
    child.join(30)
    assert [(record.key, bytes(record.value)) for record in log.news()] == [(b"there", b"2")]
    assert log.flags() == [7], "a process that has ended has no flag"


def test_processes_that_write_at_the_same_time_see_whole_records_though_one_is_killed() -> None:
    log = make_shared_log(2**18, processes=4)
    children = [started(log, _churn, seed) for seed in range(3)]
    children[0][1].recv()  # it has written for a while
    os.kill(children[0][0].pid or 0, signal.SIGKILL)
    for child, receive in children[1:]:
        receive.recv()
        torn, segments = receive.recv()
        assert torn == 0
        assert segments > 50, "each segment was used several times"
        child.join(30)


def started(log: SharedLog, target: object, *args: object) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    receive, send = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=target, args=(log, send, *args))  # type: ignore[arg-type]
    process.start()
    send.close()
    return process, receive


def _try_to_join(log: SharedLog, send: Connection) -> None:
    try:
        log.join()
    except RuntimeError as error:
        send.send(type(error).__name__)


def _read_and_write(log: SharedLog, send: Connection) -> None:
    log.join()
    log.set_flag(3)
    found = log.append([(b"here", b"not taken: it is there"), (b"there", b"2")])
    send.send(([(record.key, bytes(record.value)) for record in found], log.flags()))


def _churn(log: SharedLog, send: Connection, seed: int) -> None:
    """Write records of one repeated byte, and look at those that are held at random."""
    log.join()
    rng = random.Random(seed)
    held: dict[bytes, Record] = {}
    torn = 0
    for turn in range(1500):
        new = [
            (f"{seed}-{turn}-{one}".encode(), bytes([rng.randrange(256)]) * rng.randint(1, 5000)) for one in range(2)
        ]
        held |= {record.key: record for record in log.append(new)}
        for key in [key for key, record in held.items() if record.segment < log.oldest]:
            log.forget(held.pop(key).segment)
        for record in rng.sample(list(held.values()), min(5, len(held))):
            torn += record.value != bytes(record.value[:1]) * len(record.value)
        if turn == 300:
            send.send("writing")
    send.send((torn, log.oldest))
