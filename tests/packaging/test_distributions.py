"""The wheel and the sdist hold each module once, and the wheel installs into a clean environment and runs."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {str(path.relative_to(ROOT)) for path in (ROOT / "es_ttc").rglob("*.py")}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    return folder


@pytest.mark.slow
def test_wheel_holds_each_module_once(distributions: Path) -> None:
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".py")]
    assert Counter(names) == Counter(MODULES)


@pytest.mark.slow
def test_sdist_holds_each_module_once(distributions: Path) -> None:
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as sdist:
        names = [member.name.split("/", 1)[1] for member in sdist if member.name.endswith(".py")]
        links = [member.name for member in sdist if member.issym()]
    modules = [name for name in names if name.startswith(("es_ttc/", "ingest/", "rescorers/", "mappings/"))]
    assert Counter(modules) == Counter(MODULES)
    assert links == []


@pytest.mark.slow
def test_wheel_runs_in_a_clean_environment(distributions: Path, tmp_path: Path) -> None:
    """Only the base dependencies (linked from this environment, not fetched) and no source folder on the path."""
    venv.create(tmp_path / "env", with_pip=False)
    wheel = next(distributions.glob("*.whl"))
    python = tmp_path / "env" / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    install = [str(uv), "pip", "install", "--quiet", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300, cwd=tmp_path)
    command = [str(python), "-m", "es_ttc", "--help"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "Better ranking" in shown.stdout


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
