"""What `es-ttc engine` says when there is nothing to do or nothing it could do; real nodes: tests/engine/node."""

import json

import pytest

from es_ttc.cli.app import run

NAME = "tests-absent"


def test_stopping_what_does_not_run_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engine", "down", "--name", NAME, "--drop-data", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": NAME, "stopped": False, "data_dropped": False}


def test_status_is_json_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engine", "status", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out)["nodes"], list)
