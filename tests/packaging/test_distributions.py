"""What a release consists of: wheel and sdist hold the same files once, and the wheel is usable by itself."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from es_ttc.rescorers import compiled

ROOT = Path(__file__).parents[2]
LOOPS = "es_ttc/rescorers/compiled/loops.abi3.so"
FILES = {
    str(path.relative_to(ROOT))
    for path in (ROOT / "es_ttc").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and not path.is_symlink()
} - {LOOPS}
"""What a checkout holds, without what was compiled there."""
PACKAGED = {name for name in FILES if not name.endswith((".c", ".h"))}
MAX_BYTES = 2_000_000

CHECKED = """

from es_ttc.rescorers.base import Rescorer

checked: Rescorer[BriefParams] = BriefRescorer()
refused: Rescorer[BriefParams] = BriefParams.model_validate({})
"""
"""After the how-to page's rescorer: it fits the contract, and what is none does not."""


def build(folder: Path, *what: str, variables: Mapping[str, str] = {}) -> str:
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", str(folder), str(ROOT)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=environment)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and its base dependencies, linked from this one's cache."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    wheel = next(distributions.glob("*.whl"))
    install = [str(uv), "pip", "install", "--quiet", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300, cwd=folder)
    return python


@pytest.mark.slow
@pytest.mark.skipif(not compiled.available(), reason="es-ttc was installed without a C compiler")
def test_the_wheel_holds_each_file_of_the_package_and_nothing_else(distributions: Path) -> None:
    path = next(distributions.glob("*.whl"))
    with zipfile.ZipFile(path) as wheel:
        names = Counter(wheel.namelist())
    about = {name for name in names if re.match(r"es_ttc-[\d.]+\.dist-info/", name)}
    assert {name.partition("/")[2] for name in about} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE",
    }  # fmt: skip
    assert names == Counter(PACKAGED | {LOOPS} | about)
    assert path.name.endswith(f"-cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl")
    assert {"es_ttc/py.typed", "es_ttc/lab/demo/data/names.tsv"} <= FILES
    assert path.stat().st_size < MAX_BYTES


@pytest.mark.slow
def test_the_sdist_holds_each_file_once_and_builds_the_wheel_that_the_checkout_builds(
    distributions: Path, tmp_path: Path
) -> None:
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as sdist:
        names = [member.name.split("/", 1)[1] for member in sdist if member.isfile()]
        links = [member.name for member in sdist if member.issym()]
    packaged = [name for name in names if name.startswith(("es_ttc/", "ingest/", "rescorers/", "mappings/"))]
    assert Counter(packaged) == Counter(FILES)
    assert links == []
    build(tmp_path, "--wheel", variables={"ES_TTC_PURE": "1"})  # for nothing is compiled twice
    (pure,) = tmp_path.glob("*.whl")
    assert contents(next(distributions.glob("*.whl"))) == contents(pure)
    assert pure.name.endswith("-py3-none-any.whl")


def contents(wheel: Path) -> dict[str, bytes]:
    """Return a wheel's files without the loops, and without what tells of them."""
    with zipfile.ZipFile(wheel) as opened:
        names = [name for name in opened.namelist() if name != LOOPS and not name.endswith(("/RECORD", "/WHEEL"))]
        return {name: opened.read(name) for name in names}


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_pure_python(tmp_path: Path) -> None:
    told = build(tmp_path, "--wheel", variables={"CC": "/nowhere/cc"})
    (path,) = tmp_path.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    assert LOOPS not in zipfile.ZipFile(path).namelist()
    assert "numpy will score" in told


@pytest.mark.slow
def test_the_wheel_runs_in_a_clean_environment(installed: Path, distributions: Path, tmp_path: Path) -> None:
    version = next(distributions.glob("*.whl")).name.split("-")[1]
    for arguments, expected in ((["--help"], "Better ranking"), (["--version"], f"es-ttc {version}")):
        command = [str(installed.with_name("es-ttc")), *arguments]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert expected in shown.stdout


@pytest.mark.slow
def test_types_of_the_installed_package_check_a_users_rescorer(installed: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "add-a-rescorer.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "brief.py").write_text(example + CHECKED, encoding="utf-8")
    mypy = Path(sys.executable).with_name("mypy")
    command = [str(mypy), "--strict", "--config-file=", "--python-executable", str(installed), "brief.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert 'variable has type "Rescorer[BriefParams]"' in errors[0]


@pytest.mark.parametrize(
    ("link", "package"),
    [
        ("ingest", "index/ingest"),
        ("rescorers", "rescorers"),
        ("mappings", "index/mappings"),
        ("llm_enrichment", "enrichment/proposals"),
    ],
)
def test_root_link_leads_into_the_package(link: str, package: str) -> None:
    assert (ROOT / link).is_symlink()
    assert (ROOT / link).resolve() == ROOT / "es_ttc" / package
    assert (ROOT / link / "__init__.py").is_file()
