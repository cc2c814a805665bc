import base64
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from es_ttc.cli.app import main, run
from es_ttc.engine.http import service_headers
from es_ttc.settings import EngineSettings

SECRET = "correct-horse"
linux = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="process lists of Linux")


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """Somebody who takes a connection and says nothing: a command that has connected is at work."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def request_of(
    listening: socket.socket, folder: Path, arguments: list[str], environment: dict[str, str]
) -> tuple[bytes, bytes]:
    """Start a command, and return its first request and its arguments as the process list shows them then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "es_ttc", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        connection, _ = listening.accept()
        with connection:
            return connection.recv(65536), Path(f"/proc/{process.pid}/cmdline").read_bytes()
    finally:
        process.kill()
        process.wait()


def basic(user: str, password: str) -> bytes:
    return base64.b64encode(f"{user}:{password}".encode())


@pytest.mark.parametrize("form", ["--engine {}", "--engine={}"])
def test_a_password_of_a_flag_is_used_with_a_warning(
    listening: socket.socket, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = form.format(f"http://me:{SECRET}@127.0.0.1:{listening.getsockname()[1]}").split()
    with ThreadPoolExecutor() as pool:
        command = pool.submit(main, ["index", "show", "any", *flag])
        connection, _ = listening.accept()
        with connection:
            assert basic("me", SECRET) in connection.recv(65536)
        listening.close()
        assert isinstance(command.exception(), SystemExit)
    printed = capsys.readouterr().err
    assert "set ES_TTC_USERNAME and ES_TTC_PASSWORD_FILE" in printed
    assert SECRET not in printed


@linux
def test_a_password_may_stand_in_a_file(listening: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(f"{SECRET}\n")
    told = {"ES_TTC_USERNAME": "me", "ES_TTC_PASSWORD_FILE": str(tmp_path / "password")}
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    sent, shown = request_of(listening, tmp_path, ["index", "show", "any", "--engine", url], told)
    assert basic("me", SECRET) in sent
    assert SECRET.encode() not in shown


def test_keys_and_tokens_may_stand_in_files(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("abc\r\n")
    assert service_headers(EngineSettings(api_key_file=file)) == {"Authorization": "ApiKey abc"}
    assert service_headers(EngineSettings(bearer_token_file=file)) == {"Authorization": "Bearer abc"}
    assert service_headers(EngineSettings(api_key="def\n", api_key_file=file)) == {"Authorization": "ApiKey def"}


@pytest.mark.parametrize(("content", "says"), [(None, "cannot be read"), ("\n", "is empty")])
def test_a_file_without_a_secret_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str | None, says: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("ES_TTC_USERNAME", "me")
    monkeypatch.setenv("ES_TTC_PASSWORD_FILE", str(file))
    assert run(["index", "show", "any", "--engine", "http://127.0.0.1:9"]) == 1
    error = capsys.readouterr().err
    assert f"[password_file] {says}, got [{file}]" in error
    assert error.count("\n") == 1
    file.write_text("abc\ndef")
    for name, value in (("PASSWORD_FILE", "/dev/zero"), ("API_KEY_FILE", str(file))):
        monkeypatch.setenv(f"ES_TTC_{name}", value)
        assert run(["index", "show", "any", "--engine", "http://127.0.0.1:9"]) == 1
        assert f"[{name.lower()}] cannot be read, got [{value}]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("AWS_REGION", "EU Central", "[aws_region] is wrong, got [EU Central]: must match pattern"),
        ("LLM_API", "both", "[llm_api] is wrong, got [both]: must be 'chat' or 'completions'"),
        ("REQUEST_TIMEOUT", "soon", "[request_timeout] is wrong, got [soon]: must be a number"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    name: str, value: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"ES_TTC_{name}", value)
    assert run(["jobs", "list"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"es-ttc: {problem}")
    assert printed.endswith(f"; set it by a flag, by ES_TTC_{name}, or in es-ttc.toml\n")
