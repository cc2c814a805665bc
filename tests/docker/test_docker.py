"""The container files, as far as they can be checked without a container engine."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.settings import GatewaySettings
from tests.support.elasticsearch import ElasticsearchDistribution

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    return loaded


def test_the_engines_are_those_that_the_tests_run(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["opensearch"]["image"] == f"opensearchproject/opensearch:{OpenSearchDistribution().version}"
    assert services["elasticsearch"]["image"] == f"elasticsearch:{ElasticsearchDistribution.version}"


def test_nothing_is_open_to_other_machines(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert ports
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_every_volume_is_declared_and_used(compose: dict[str, Any]) -> None:
    used = {entry.split(":")[0] for service in compose["services"].values() for entry in service.get("volumes", ())}
    assert used == set(compose["volumes"])


def test_only_an_engine_and_the_gateway_start_unasked(compose: dict[str, Any]) -> None:
    assert {name for name, entry in compose["services"].items() if "profiles" not in entry} == {"opensearch", "gateway"}


def test_the_gateway_is_built_from_files_that_exist(compose: dict[str, Any]) -> None:
    build = compose["services"]["gateway"]["build"]
    folder = ROOT / "docker" / build["context"]
    assert (folder / build["dockerfile"]).read_text().replace("\\\n", " ") == DOCKERFILE
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if re.match(r"COPY (?!--from)", line)]
    assert copied
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    for source in (source for sources in copied for source in sources):
        assert (folder / source).exists()
        assert f"!{source}" in ignored


def test_the_image_runs_as_nobody_in_particular_on_a_python_that_we_support() -> None:
    versions = re.findall(r"^FROM python:(\d+)\.(\d+)-slim", DOCKERFILE, re.MULTILINE)
    assert len(versions) == 2
    assert all((int(major), int(minor)) >= (3, 11) for major, minor in versions)
    assert re.search(r"^USER [1-9]\d*$", DOCKERFILE, re.MULTILINE)


def test_the_health_check_asks_where_the_gateway_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = dict(re.findall(r"(ES_TTC_\w+)=(\S+)", DOCKERFILE))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = GatewaySettings()
    assert settings.host == "0.0.0.0"
    assert re.search(rf"^EXPOSE {settings.port}$", DOCKERFILE, re.MULTILINE)
    assert f"http://127.0.0.1:{settings.port}/_ttc/health" in DOCKERFILE
