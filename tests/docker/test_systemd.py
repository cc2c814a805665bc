"""The units: what they start and set exists, and systemd itself finds nothing wrong with them."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from es_ttc.cli.app import load_command
from es_ttc.serving.process import DRAIN_SECONDS
from es_ttc.settings import GatewaySettings

FOLDER = Path(__file__).parents[2] / "docker" / "systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
VARIABLES = {f"ES_TTC_{name.upper()}" for name in GatewaySettings.model_fields}
EXPOSURE = 20
"""Greatest exposure that systemd may compute, of 100 (a unit without any protection has 96)."""


def values(unit: str, key: str) -> list[str]:
    lines = (FOLDER / unit).read_text(encoding="utf-8").splitlines()
    return [value for line in lines for name, _, value in [line.partition("=")] if name == key]


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_starts_one_of_our_commands_with_settings_that_there_are(unit: str) -> None:
    [start] = values(unit, "ExecStart")
    program, name, *rest = shlex.split(start)
    assert program == "/opt/es-ttc/bin/es-ttc"
    known = {flag for option in load_command(name).params for flag in option.opts}
    assert {word for word in rest if word.startswith("--")} <= known
    set_here = {pair.partition("=")[0] for line in values(unit, "Environment") for pair in shlex.split(line)}
    assert set_here <= VARIABLES
    credentials = {line.partition(":")[0] for line in values(unit, "LoadCredential")}
    assert f"ES_TTC_PASSWORD_FILE=%d/{credentials.pop()}" in values(unit, "Environment")
    assert int(values(unit, "TimeoutStopSec")[0]) > DRAIN_SECONDS


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_nothing_to_say(unit: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    copy = tmp_path / unit  # with a program that is here
    copy.write_text((FOLDER / unit).read_text(encoding="utf-8").replace("/opt/es-ttc/bin/es-ttc", "/bin/true"))
    for command in (["verify", "--man=no"], ["security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager"]):
        line = ["systemd-analyze", *command, str(copy)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert command[0] == "security" or not done.stderr
