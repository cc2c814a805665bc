"""A Redis of a worker's own, and the limits that workers keep through it."""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import redis as redis_client
from celery import Celery
from celery.worker import state
from redis.asyncio import Redis

from es_ttc.cli.app import run
from es_ttc.enrichment.jobs import redis_server
from es_ttc.enrichment.jobs.app import configure, run_until_stopped
from es_ttc.enrichment.jobs.rate_limit import SharedRateLimit
from es_ttc.enrichment.jobs.redis_server import EmbeddedRedis, addresses, await_redis, find_server
from es_ttc.errors import ConfigurationError

ENDPOINT = "http://127.0.0.1:1/v1"


def server_of(pid: int) -> psutil.Process:
    family = psutil.Process(pid).children(recursive=True)
    [found] = [child for child in family if "-server" in child.name()]
    return found


def answers(url: str, seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with redis_client.Redis.from_url(url) as client:
                return bool(client.ping())
        except (redis_client.RedisError, OSError):
            time.sleep(0.05)
    return False


def test_a_redis_that_is_killed_comes_back_empty_and_ends_with_its_worker() -> None:
    with EmbeddedRedis() as own:
        with redis_client.Redis.from_url(own.url) as client:
            client.set("a", 1)
        killed = server_of(os.getpid())
        killed.kill()
        killed.wait(10)
        time.sleep(0.1)
        assert answers(own.url)
        with redis_client.Redis.from_url(own.url) as client:
            assert client.get("a") is None
        last = server_of(os.getpid())
    assert not last.is_running()


def test_a_redis_does_not_outlive_a_worker_that_is_killed() -> None:
    code = (
        "from es_ttc.enrichment.jobs.redis_server import EmbeddedRedis\n"
        "with EmbeddedRedis() as own:\n print(own.url, flush=True)\n input()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert child.stdout is not None
    folder = Path(child.stdout.readline().strip().removeprefix("unix://")).parent
    assert folder.stat().st_mode & 0o077 == 0  # nobody else may enter
    server = server_of(child.pid)
    child.kill()
    child.communicate()
    server.wait(15)
    assert not server.is_running()
    shutil.rmtree(folder)


def test_where_there_is_no_redis_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.access(find_server(), os.X_OK)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(redis_server, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'es-ttc.worker.'"):
        find_server()


def test_addresses_of_both_kinds_are_known() -> None:
    assert addresses("redis://h:1/0") == ("redis://h:1/0", "redis://h:1/0")
    assert addresses("unix:///a/b") == addresses("redis+socket:///a/b") == ("redis+socket:///a/b", "unix:///a/b")
    with pytest.raises(ConfigurationError, match=r"\[redis\]") as wrong:
        addresses("amqp://user:secret@host")
    assert "secret" not in str(wrong.value)


def test_a_worker_that_only_enriches_refuses_to_start_without_a_model(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ES_TTC_LLM_URL", raising=False)
    assert run(["worker", "--only", "enrich"]) == 1
    assert "no language model is configured: set ES_TTC_LLM_URL" in capfd.readouterr().err


async def test_the_rate_is_that_of_all_workers_together() -> None:
    with EmbeddedRedis() as own:
        clients = [Redis.from_url(own.url) for _ in range(3)]
        limits = [SharedRateLimit(each, ENDPOINT, 3) for each in clients]
        await asyncio.gather(*(limit.wait() for limit in limits))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await limits[0].wait()
        await SharedRateLimit(clients[0], "other", 1).wait()
        for each in clients:
            await each.aclose()


async def test_without_redis_work_goes_on() -> None:
    gone = Redis.from_url("unix:///nowhere/redis.sock")
    for _ in range(3):
        await SharedRateLimit(gone, ENDPOINT, 1).wait()
    await gone.aclose()


def test_a_worker_says_which_redis_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("es_ttc.cli.worker._REDIS_SECONDS", 0.6)
    monkeypatch.setenv("ES_TTC_REDIS", "redis://:secret@127.0.0.1:9/0")
    assert run(["worker", "--only", "encode"]) == 1
    said = capsys.readouterr().err
    assert "Redis at redis://127.0.0.1:9/0 did not answer within 1 s" in said
    assert "secret" not in said


def test_a_redis_that_comes_up_late_is_waited_for() -> None:
    with EmbeddedRedis() as own:
        await_redis(own.url, 5)


def test_a_worker_whose_redis_is_gone_before_it_began_can_be_stopped() -> None:
    """Celery waits for the end of a schedule that never began, so a worker ignored every signal but SIGKILL."""
    app = Celery("never", broker="redis://127.0.0.1:9/0", set_as_current=False)
    configure(app, "never", "never.sweep", longest=60.0)
    ended = threading.Event()

    def work() -> None:
        run_until_stopped(app, concurrency=1, pool="solo")
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    time.sleep(1.0)
    state.should_stop = 0
    try:
        assert ended.wait(30)
    finally:
        state.should_stop = None
