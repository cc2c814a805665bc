"""What `es-ttc engine` says when there is nothing to do or nothing it could do; real nodes: tests/engine/node."""

import json

import pytest

from es_ttc.cli.app import run

NAME = "tests-absent"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["logs", "--name", NAME], 1, f"there is no node [{NAME}]: see `es-ttc engine status`"),
        (["logs", "--name", NAME, "--follow", "--json"], 2, "give one of the two"),
        (["logs", "--name", "../../etc"], 1, "node name [../../etc] is not allowed"),
        (["up", "--name", NAME, "--heap", "lots"], 1, "heap [lots] is not a size"),
        (["up", "--name", NAME, "--port", "70000"], 2, "70000"),
        (["up", "--name", NAME, "--version", "2.11.0"], 2, "2.11.0"),
        (["up", "--name", NAME, "--version", "2.19.1", "--plugin"], 2, "the plugin is for OpenSearch 3.5.0"),
    ],
)
def test_a_mistake_is_one_sentence_on_standard_error(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["engine", *arguments]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err.splitlines()[-1]
    assert "Traceback" not in printed.err


def test_stopping_what_does_not_run_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engine", "down", "--name", NAME, "--drop-data", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": NAME, "stopped": False, "data_dropped": False}


def test_status_is_json_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engine", "status", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out)["nodes"], list)
