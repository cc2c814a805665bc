"""`es-ttc serve` as a process: says where it listens, drains before it stops, and one sentence for what is wrong."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from es_ttc.cli.app import run
from es_ttc.cli.attach import encoder_lacking
from es_ttc.encoders import EncoderIdentity
from tests.cli.conftest import Filled
from tests.serving.client import Reply, call
from tests.serving.relay import Passed, relay

COMMAND = [sys.executable, "-m", "es_ttc", "serve", "--port", "0", "--encoder", "minilm@onnx"]


@contextmanager
def serving(
    engine: str, *flags: str, logs: int = subprocess.PIPE, folder: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [*COMMAND, "--engine", engine, "--json", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=logs, text=True, cwd=folder) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, process.stderr.read() if process.stderr else ""
                text += line
            yield process, json.loads(text)
        finally:
            process.kill()


def test_serve_drains_before_it_stops(opensearch_url: str) -> None:
    asked, release = threading.Event(), threading.Event()

    def hold(request: Passed) -> Reply | None:
        if request.target == "/_cat/health":
            asked.set()
            assert release.wait(30)
        return None

    with relay(opensearch_url) as engine, serving(engine.url) as (process, said):
        assert said["engine_reachable"] is True
        assert said["url"].startswith("http://127.0.0.1:")
        assert call(said["url"], "GET", "/_ttc/health").status == 200
        engine.before = hold
        replies: list[Reply] = []
        client = threading.Thread(target=lambda: replies.append(call(said["url"], "GET", "/_cat/health")))
        client.start()
        assert asked.wait(30)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        release.set()
        client.join(30)
        assert replies[0].status == 200
        process.wait(30)
        assert process.stderr is not None
        logs = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert any(line["event"] == "Application shutdown complete." for line in logs)


def test_serve_starts_without_an_engine_and_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}"
    with serving(nobody) as (process, said):
        assert said["engine_reachable"] is False
        assert "secret" not in said["engine"]
        assert call(said["url"], "GET", "/_ttc/ready").status == 503
        process.terminate()
        process.wait(30)
        assert process.stderr is not None
        errors = process.stderr.read()
        assert "no engine answers at http://127.0.0.1:" in errors
        assert "secret" not in errors


def test_an_encoder_that_does_not_exist_is_one_sentence() -> None:
    command = [sys.executable, "-m", "es_ttc", "serve", "--port", "0", "--encoder", "minilmm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("es-ttc: encoder [minilmm] is no short name and no folder: did you mean [minilm]?")


def test_the_page_of_an_index_that_does_not_exist_is_refused(
    opensearch_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ui", "nosuch", "--no-browser", "--engine", opensearch_url]) == 1
    assert capsys.readouterr().err.startswith("es-ttc: there is no index [nosuch] in the engine at ")


@pytest.mark.engine
async def test_attach_is_told_what_encoder_a_running_gateway_lacks(filled: Filled) -> None:
    host, _, port = filled.gateway.removeprefix("http://").partition(":")
    address: dict[str, Any] = {"host": host, "port": int(port)}
    minilm = EncoderIdentity("all-MiniLM-L6-v2", "0123456789ab", 384, 256)
    assert await encoder_lacking(minilm, **address) == ""
    sentence = await encoder_lacking(replace(minilm, model="all-mpnet-base-v2"), **address)
    assert (
        "lacks the encoder [mpnet]: start it again with `es-ttc serve --encoder minilm@onnx --encoder mpnet`"
        in sentence
    )


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "es_ttc", "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert done.returncode == 1
    assert done.stderr == f"es-ttc: port {port} on [127.0.0.1] is taken by another program: choose one with --port\n"
