"""The image's steps run in their order, from what the build's context holds, and what they make serves."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
DIGEST = f"sha256:{'0' * 64}"
NAMES = "{http://maven.apache.org/POM/4.0.0}"
LIFE_CYCLE = {"clean", "resources", "compiler", "surefire", "jar", "install", "deploy"}


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docker_{name}", DOCKER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pin() -> ModuleType:
    return _module("pin")


def _can_mount() -> bool:
    if not sys.platform.startswith("linux") or os.geteuid():
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.slow
def test_each_step_works_in_its_order_and_the_gateway_serves_as_compose_has_it() -> None:
    if not _can_mount():
        pytest.skip("needs Linux, root and mounts: sudo python docker/rehearse.py")
    command = [sys.executable, str(DOCKER / "rehearse.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "RUN pip wheel" in done.stdout
    assert "the encoder: passed" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("rehearsed: every step")


def test_rehearsal_leaves_out_the_files_of_dockerignore() -> None:
    ignored = _module("rehearse").ignored
    patterns = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    sent = ["es_ttc/cli/app.py", "hatch_build.py", "README.md", "LICENSE", "pyproject.toml", "requirements/build.txt"]
    assert [path for path in sent if ignored(path, patterns)] == []
    left_out = ["tests/conftest.py", "requirements/dev.txt", "es_ttc/__pycache__/x.pyc", "es_ttc/cli/__pycache__/x.pyc"]
    assert [path for path in left_out if not ignored(path, patterns)] == []


def test_everything_is_installed_by_hash_and_nothing_is_built_on_the_way() -> None:
    installs = re.findall(r"pip install ([^&\n]*)", DOCKERFILE)
    assert len(installs) == 3
    for arguments in installs:
        from_file = re.search(r"-r \S+$", arguments.strip())
        assert "--no-deps" in arguments
        assert from_file is None or {"--require-hashes", "--only-binary"} <= set(arguments.split())
        assert from_file is not None or "/tmp/wheel/" in arguments
    [wheel] = re.findall(r"pip wheel ([^&\n]*)", DOCKERFILE)
    assert {"--no-build-isolation", "--no-deps"} <= set(wheel.split())


def test_the_builds_own_needs_are_pinned_to_what_the_images_build_installs() -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements" / "build.txt").read_text(), re.MULTILINE))
    tools = (ROOT / "requirements" / "tools.txt").read_text()
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert required == [f"{name}=={pinned[name]}" for name in ("hatchling", "setuptools")]
    assert all(f"{name}=={version}" in tools for name, version in pinned.items())
    makefile = (ROOT / "Makefile").read_text()
    assert all("--no-build-isolation" in line for line in makefile.splitlines() if line.endswith("-e ."))


def test_every_plugin_of_the_mavens_build_has_a_version() -> None:
    managed = {}
    used = set()
    for path in (ROOT / "plugin").rglob("pom.xml"):
        project = ElementTree.parse(path).getroot()
        for plugin in project.iter(f"{NAMES}plugin"):
            name, version = plugin.findtext(f"{NAMES}artifactId"), plugin.findtext(f"{NAMES}version")
            used.add(name)
            if version is not None:
                managed[name] = version
    assert used | {f"maven-{one}-plugin" for one in LIFE_CYCLE} <= managed.keys()
    assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in managed.values())


def test_images_without_a_digest_are_named(pin: ModuleType) -> None:
    text = "FROM --platform=x python:3.12-slim AS build\nFROM build\nCOPY --from=build a b\n    image: redis:8\n"
    assert pin.unpinned(text) == ["python:3.12-slim", "redis:8"]
    once = pin.pinned(text, {"python:3.12-slim": DIGEST, "redis:8": DIGEST})
    assert pin.unpinned(once) == []
    assert f"FROM --platform=x python:3.12-slim@{DIGEST} AS build\nFROM build\n" in once
    assert f"image: redis:8@{DIGEST}\n" in once
    assert pin.pinned(once, {"python:3.12-slim": DIGEST}) == once
    assert pin.unpinned("    image: es-ttc\n") == []  # our own


def test_an_image_is_published_from_digests_alone(pin: ModuleType) -> None:
    named = sorted({image for path in pin.files() for image in pin.unpinned(path.read_text())})
    done = subprocess.run([sys.executable, DOCKER / "pin.py"], capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == (not named)
    assert all(f"[{image}] has no digest" in done.stderr for image in named)
    recipe = (ROOT / "Makefile").read_text().partition("\nimage:")[2].split("\n\n")[0]
    assert recipe.index("docker/pin.py") < recipe.index("docker build")
