"""The file es-ttc.toml: what is wrong in it is refused with its name and line."""

import re
from pathlib import Path

import pytest

from es_ttc.cli.app import run
from es_ttc.cli.common import EncoderOptions
from es_ttc.errors import ConfigurationError
from es_ttc.settings import EngineSettings, GatewaySettings, Settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port = 1\npassword = secret\n", "is no valid TOML: Invalid value (at line 2, column 12)"),
        ('port = "\\q"', "is no valid TOML: "),
        pytest.param(f"rerankers = {'[' * 900}{']' * 900}", "[es-ttc.toml] is no valid TOML: ", id="too deep to read"),
        pytest.param(f"# {'x' * 2**24}", "[es-ttc.toml] is longer than 16,777,216 bytes", id="too long"),
    ],
)
def test_a_wrong_file_is_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "es-ttc.toml").write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        EngineSettings()
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
    assert run(["doctor"]) == 1
    assert re.match(r"es-ttc: \[?es-ttc\.toml", capsys.readouterr().err)


@pytest.mark.parametrize(("key", "input_"), [("request_timeout", "'soon'"), ("aws_region", "'EU Central'")])
def test_a_wrong_value_is_refused_with_its_line(
    key: str, input_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "es-ttc.toml").write_text(f"engine = 'http://x:1'\n{key} = {input_}\n")
    assert run(["jobs", "list"]) == 1
    assert capsys.readouterr().err.startswith(f"es-ttc: es-ttc.toml, line 2: [{key}] is wrong, got [{input_[1:-1]}]: ")
    monkeypatch.setenv(f"ES_TTC_{key.upper()}", "''")
    assert run(["jobs", "list"]) == 1
    assert "line 2" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        pytest.param(
            "LLM_EXTRA_BODY", f'{{"a": {"[" * levels}{"]" * levels}}}', "_EXTRA_BODY must be JSON", id=f"{levels}"
        )
        for levels in (300, 20_000)
    ]
    + [
        (name, "abc\ndef", "must be one line, without control characters; set it by")
        for name in ("API_KEY", "BEARER_TOKEN", "LLM_API_KEY", "ENCODER_API_KEY")
    ],
)
def test_a_value_that_cannot_be_sent_is_refused(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"ES_TTC_{name}", value)
    assert run(["doctor"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"es-ttc: [{name.lower()}] is wrong: ")
    assert said in error


def test_a_variable_that_is_no_setting_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in (
        ("ES_TTC_COMPILED", "false"),
        ("ES_TTC_SERVICE_HOST", "10.0.0.1"),
        ("ES_TTC_REDIS_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ("ES_TTC_GATEWAY_PORT", "tcp://10.0.0.1:9280"),
    ):
        monkeypatch.setenv(variable, value)
    EngineSettings()
    for variable, fix in (
        ("ES_TTC_ENCODR", "did you mean [ES_TTC_ENCODER]?"),
        ("ES_TTC_ZZZ", "docs/reference/settings.md lists the settings"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "mpnet")
            assert run(["doctor"]) == 1
        expected = f"es-ttc: the environment: there is no setting [{variable}]; {fix}\n"
        assert capsys.readouterr().err == expected


def test_a_file_is_read_by_every_kind_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "es-ttc.toml").write_text("engine = 'http://x:1'\nport = 5\n[rerankers.first]\nkind = 'http'\n")
    assert EngineSettings().engine == "http://x:1"
    assert GatewaySettings().rerankers == {"first": {"kind": "http"}}


def test_an_encoder_is_chosen_by_options_that_name_it_or_its_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ES_TTC_ENCODER", raising=False)
    for options, encoder in (
        (EncoderOptions(), None),
        (EncoderOptions(encoder="mpnet"), "mpnet"),
        (EncoderOptions(adapter="law"), "minilm+law"),
    ):
        assert options.settings(Settings).chosen_encoder == encoder
