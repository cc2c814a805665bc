"""The commands of README and of five-minutes.md work as they stand there, with a wheel in an empty environment.

Only addresses and the name of the index are others. `pip` is uv's, with its cache; in place of the clone it installs
the clone's wheel, which it would build, or the one of a release (`make test-release`). `make demo` and `make test` are
only looked up: tests/cli/test_demo.py runs the demonstration, and this is a part of the other.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ON_ONE_ENGINE = True
ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
README, FIVE_MINUTES = Path("README.md"), Path("docs/how-to/five-minutes.md")
BEFORE = r"""
set -euo pipefail
pip() { "$UV" pip "${@/#./$WHEEL}"; }
python3() { "$PYTHON" "$@"; }
curl() { command curl --fail-with-body --retry 60 --retry-delay 1 --retry-connrefused "$@"; }
trap 'kill $(jobs -p)' EXIT
"""
"""Before the page's first command. `curl` waits until the gateway listens, and fails if the response is an error."""


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def lines(page: Path) -> list[str]:
    """Return the lines of a page's commands without comments."""
    found = (re.sub(r"(^| +)# .*", "", line) for block in blocks(page) for line in block.splitlines())
    return [line for line in found if line]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this checkout by README's own command, with what is not committed."""
    folder = tmp_path_factory.mktemp("quick-start")
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    command = lines(ROOT / README)[0]
    assert command.startswith("git clone ")
    variables = {**os.environ, "REPOSITORY": str(ROOT)}
    subprocess.run(["bash", "-c", command], check=True, cwd=folder, capture_output=True, env=variables)
    changes = subprocess.run(["git", "diff", "--binary", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    if changes:
        subprocess.run(["git", "apply", "-"], input=changes, cwd=folder / "es-ttc", check=True, capture_output=True)
    return folder / "es-ttc"


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    """The wheel for this platform in the folder that ES_TTC_TEST_DIST names, else one of the clone."""
    folder = Path(os.environ.get("ES_TTC_TEST_DIST", clone / "dist"))
    if "ES_TTC_TEST_DIST" not in os.environ:
        command = [str(UV), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(clone)]
        subprocess.run(command, check=True, timeout=300, env={**os.environ, "ES_TTC_PURE": "1"})
    return min(folder.resolve().glob("*.whl"))  # the one with compiled loops comes before the pure one


@pytest.mark.slow
def test_five_minutes_with_a_cluster_end_with_a_better_ranking(
    clone: Path, wheel: Path, engine_url: str, index_name: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    script = BEFORE + "\n".join(blocks(clone / FIVE_MINUTES))
    script = script.replace("http://127.0.0.1:9200", engine_url).replace("127.0.0.1:9280", f"127.0.0.1:{port}")
    script = re.sub(r"\bnotes\b", index_name, script)
    ready = f"curl -s 127.0.0.1:{port}/_ttc/ready"
    script = re.sub(r"^es-ttc serve$", f"es-ttc serve &\n{ready}", script, flags=re.MULTILINE)
    own = {"UV": str(UV), "WHEEL": str(wheel), "PYTHON": sys.executable, "ES_TTC_PORT": port, "ES_TTC_WORKERS": "1"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    compared, _, served = done.stdout.partition("Ctrl-C stops it")
    assert "Moved the «bees»" in compared, done.stdout
    assert '{"_id":"garden",' in served, done.stdout + done.stderr
    assert '"applied":true' in served, done.stdout + done.stderr


def test_commands_of_the_readme_are_those_of_five_minutes(clone: Path) -> None:
    ran = set(lines(clone / FIVE_MINUTES))
    others = [line for line in lines(clone / README)[1:] if line not in ran]
    assert others == ["make demo", "make test"]
    for command in others:
        subprocess.run([*command.split(), "--dry-run"], cwd=clone, check=True, capture_output=True, timeout=60)


def test_disk_space_in_the_readme_multiplies() -> None:
    text = (ROOT / README).read_text(encoding="utf-8")
    found = re.search(r"([\d.]+) kB \+ (\d+) tokens . (\d+) bytes = (\d+) kB a document: (\d+) GB a million", text)
    assert found is not None
    base, tokens, size, document, million = map(float, found.groups())
    assert round(base + tokens * size / 1000) == document == million
