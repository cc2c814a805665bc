"""The chart: rendered by Helm, and compared with Kubernetes' schemas and with our settings, commands and endpoints."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import kubernetes_validate
import platformdirs
import pytest
import yaml

from es_ttc import __version__
from es_ttc.cli.app import load_command
from es_ttc.common.files import locked, make_folder
from es_ttc.serving.admin.openapi import OPERATIONS
from es_ttc.serving.process import DRAIN_SECONDS
from es_ttc.settings import GatewaySettings
from tests.docker.test_monitoring import scraped

MODULE = "helm.sh/helm/v3/cmd/helm"
VERSION = "v3.22.0"
KUBERNETES = "1.33.0"
"""A Helm that Go has built takes a Kubernetes from long ago for the cluster's, unless it is told."""
FOLDER = Path(__file__).parents[2] / "docker" / "helm" / "es-ttc"
_BUILD_SECONDS = 1200
_SECONDS = 120


def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Helm on the chart."""
    line = [program(), *command.split(), str(FOLDER), "--kube-version", KUBERNETES, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=_SECONDS, check=False)


def render(*arguments: str) -> list[dict[str, Any]]:
    """Return the manifests of a release named r."""
    done = run("template r", *arguments)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def program() -> str:
    """Return the path of Helm: that on the PATH, or one that is built at the first call (some minutes).

    The test is skipped where there is no Helm, and no Go that can build it.
    """
    if found := shutil.which("helm"):
        return found
    folder = make_folder(platformdirs.user_cache_path("es-ttc") / "tests" / f"helm-{VERSION}")
    built = folder / "helm"
    with locked(folder / "build.lock"):
        if not built.is_file():
            _build(folder)
    return str(built)


def _build(folder: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        _cannot("there is no helm and no go on the PATH")
    staging = make_folder(folder / "staging")
    environment = {**os.environ, "GOBIN": str(staging), "GOFLAGS": ""}
    try:
        subprocess.run(
            [go, "install", f"{MODULE}@{VERSION}"],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        _cannot(f"go could not build {MODULE}: {str(error.stderr)[-2000:]}")
    (staging / "helm").replace(folder / "helm")


def _cannot(why: str) -> NoReturn:
    pytest.skip(f"the chart is not rendered: {why}")


VALUES = Path(__file__).parent / "helm"
CASES = {
    "default": ("--set", "engine=https://search.example.org:9200"),
    "all": ("-f", str(VALUES / "all.yaml")),
    "external-redis": ("-f", str(VALUES / "external-redis.yaml")),
}
CHART = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
SCHEMA = json.loads((FOLDER / "values.schema.json").read_text())["properties"]
VARIABLES = {f"ES_TTC_{name.upper()}" for name in GatewaySettings.model_fields}
SECRETS = {name for name, field in GatewaySettings.model_fields.items() if "SecretStr" in str(field.annotation)}
OF_THE_CHART = {"engine", "cache_dir", "ca_certs", "host", "port", "workers", "tls_cert", "tls_key"}
OLDEST = CHART["kubeVersion"].removeprefix(">=").split(".0-")[0]
NEWEST = "1.37"


@pytest.fixture(scope="module", params=CASES)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(*CASES[request.param])


def kind(manifests: list[dict[str, Any]], wanted: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == wanted]


def pods(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [manifest["spec"]["template"] for manifest in kind(manifests, "Deployment")]


def own_manifests(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The containers of es-ttc."""
    containers = [container for pod in pods(manifests) for container in pod["spec"]["containers"]]
    return [container for container in containers if container["name"] != "redis"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_helm_has_nothing_to_say(case: str) -> None:
    done = run("lint --strict", *CASES[case])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("", "engine: the URL of the engine is missing"),
        ("engine=https://user:password@search.example.org", "'/engine'"),
        ("engine=http://e,settings.feature_cache=1", "'/settings': additional properties 'feature_cache'"),
        ("engine=http://e,settings.password=secret", "'/settings': additional properties 'password'"),
        ("engine=http://e,secrets.password=secret", "'/secrets/password': got string, want object"),
        ("engine=http://e,gateway.worker=2", "'/gateway': additional properties 'worker'"),
        (
            "engine=http://e,serviceMonitor.enabled=true,settings.allowed_hosts={a.example.org}",
            "settings.allowed_hosts",
        ),
        (
            "engine=http://e,serviceMonitor.enabled=true,secrets.admin_token.name=s,secrets.admin_token.key=k",
            "add metrics to settings.admin_public",
        ),
        ("engine=http://e,worker.enabled=true", "workers share a Redis: set redis.enabled, or secrets.redis"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong: str, message: str) -> None:
    done = run("template r", "--set", wrong)
    assert done.returncode != 0
    assert message in done.stderr


def test_values_are_our_settings() -> None:
    public = {name for name in GatewaySettings.model_fields if not name.endswith("_file")} - SECRETS - OF_THE_CHART
    assert SCHEMA["settings"]["properties"].keys() == public
    assert SCHEMA["secrets"]["properties"].keys() == SECRETS
    assert (CHART["version"], CHART["appVersion"]) == (__version__, __version__)


@pytest.mark.slow
def test_the_values_of_the_how_to_are_accepted(tmp_path: Path) -> None:
    page = (FOLDER.parents[2] / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    values = [block for block in blocks if "rules" not in block]  # those of the adapter
    assert len(values) == 3
    merged = {key: value for block in values for key, value in block.items()}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(merged), encoding="utf-8")
    assert len(pods(render("-f", str(tmp_path / "values.yaml")))) == 3


@pytest.mark.slow
def test_kubernetes_knows_every_field(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        if manifest["kind"] != "ServiceMonitor":  # a resource of Prometheus' operator
            for version in (OLDEST, NEWEST):
                kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.slow
def test_containers_are_started_with_commands_and_settings_that_there_are(
    manifests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for container in own_manifests(manifests):
        name, *flags = container["args"]
        known = {flag for option in load_command(name).params for flag in option.opts}
        assert {flag.partition("=")[0] for flag in flags} <= known
        for variable in container["env"]:
            assert variable["name"] in VARIABLES
            secret = variable["name"].removeprefix("ES_TTC_").lower() in SECRETS - {"redis"}
            assert secret == ("valueFrom" in variable) or variable["name"] == "ES_TTC_REDIS"
            if not str(variable.get("value", "/etc/es-ttc/")).startswith("/etc/es-ttc/"):
                monkeypatch.setenv(variable["name"], variable["value"])
        settings = GatewaySettings()
        given = {variable["name"] for variable in container["env"]}
        if "ES_TTC_MODEL_NAMES" in given:
            assert ("ES_TTC_MODEL_TOKEN" in given) == (name == "serve")  # callers send it to gateways
            assert settings.model_names == {"rerank-v3.5": "spectral"}
            assert settings.allowed_origins == ("https://one.example.org", "https://two.example.org")
            assert settings.feature_cache_mb == 2048


@pytest.mark.slow
def test_pods_have_no_rights_and_write_only_to_their_volumes(manifests: list[dict[str, Any]]) -> None:
    assert not kind(manifests, "Secret")
    for pod in pods(manifests):
        assert pod["spec"]["automountServiceAccountToken"] is False
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        [container] = pod["spec"]["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["spec"]["volumes"]}
        assert container["resources"]["limits"]["memory"]
        paths = {one["mountPath"] for one in container["volumeMounts"]}
        for variable in container.get("env", ()):
            if str(variable.get("value", "")).startswith("/etc/"):
                assert str(Path(variable["value"]).parent) in paths


@pytest.mark.slow
def test_probes_metrics_and_the_end_of_a_pod_are_those_of_the_gateway(manifests: list[dict[str, Any]]) -> None:
    paths = {one.path for one in OPERATIONS}
    [gateway] = [pod["spec"] for pod in pods(manifests) if pod["spec"]["containers"][0]["name"] == "gateway"]
    [container] = gateway["containers"]
    tls = any(flag.startswith("--tls-cert") for flag in container["args"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert get["path"] in paths
        assert get["scheme"] == ("HTTPS" if tls else "HTTP")
        assert get["port"] == container["ports"][0]["name"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert gateway["terminationGracePeriodSeconds"] > pause + DRAIN_SECONDS
    for monitor in kind(manifests, "ServiceMonitor"):
        assert {one["path"] for one in monitor["spec"]["endpoints"]} <= paths
    for scaler in kind(manifests, "HorizontalPodAutoscaler"):
        cpu, in_flight = scaler["spec"]["metrics"]
        assert cpu["resource"]["name"] == "cpu"
        assert in_flight["pods"]["metric"]["name"] in scraped()


@pytest.mark.slow
def test_every_selector_finds_its_pods(manifests: list[dict[str, Any]]) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(manifests)]
    selectors = [manifest["spec"]["selector"] for manifest in kind(manifests, "Service")]
    for wanted in ("Deployment", "PodDisruptionBudget"):
        selectors += [manifest["spec"]["selector"]["matchLabels"] for manifest in kind(manifests, wanted)]
    policies = [manifest["spec"] for manifest in kind(manifests, "NetworkPolicy")]
    selectors += [policy["podSelector"]["matchLabels"] for policy in policies]
    for selector in selectors:
        assert sum(selector.items() <= pod.items() for pod in labels) == 1
    for monitor in kind(manifests, "ServiceMonitor"):
        services = [manifest["metadata"]["labels"] for manifest in kind(manifests, "Service")]
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        assert sum(wanted <= service.items() for service in services) == 1
