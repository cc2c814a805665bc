"""The doctor: what works is ok, what does not is named with the command that mends it."""

import asyncio
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from es_ttc.cli import doctor as checks
from es_ttc.cli.doctor import Check, Status, report, summary
from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.engine.connect import connected
from es_ttc.engine.node.parts import DEFAULT_VERSION
from es_ttc.engine.protocol import Capabilities
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.cli.conftest import Filled
from tests.conftest import Outcome
from tests.support.llm import settings_for

Examined = Callable[..., tuple[int, Mapping[str, Mapping[str, str]]]]
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def examined(es_ttc: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> Examined:
    """Runs `es-ttc doctor --json`; gives its exit status and its checks by subject."""
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")

    def examine(*arguments: str) -> tuple[int, Mapping[str, Mapping[str, str]]]:
        status, out, err = es_ttc("doctor", "--json", *arguments)
        assert err == ""
        answer = json.loads(out)
        assert answer["ok"] == (status == 0)
        return status, {check["subject"]: check for check in answer["checks"]}

    return examine


@pytest.mark.engine
def test_on_a_healthy_engine_everything_needed_works(filled: Filled, examined: Examined) -> None:
    status, found = examined("--engine", filled.engine, "--gateway", filled.gateway)
    assert status == 0
    assert found["encoder"]["detail"].startswith("all-MiniLM-L6-v2@3bfb98ac8a7b/384x256, ")
    assert ", int8 weights" in found["encoder"]["detail"]
    assert found["engine"]["verdict"] in ("ok", "warning")  # a warning where the node's version is not maintained
    needed = ["python", "es-ttc", "encoder backend", "cache", "encoder", "gateway"]
    assert {subject: found[subject]["verdict"] for subject in needed} == dict.fromkeys(needed, "ok")
    assert found["gateway"]["detail"] == filled.gateway
    assert found["methods"]["detail"].startswith("mean pooling: all")
    index = found[f"index {filled.exhibit.index}"]
    assert index["verdict"] == "ok"
    assert index["detail"].startswith("30 documents, all-MiniLM-L6-v2@")
    assert "on disk (a million such: " in index["detail"]


@pytest.fixture
def ailing(engine_url: str, index_name: str, encoder: Encoder) -> str:
    """Two indices: one holds a document without features, the other belongs to an encoder that is not here."""
    spec = IndexSpec(encoder.identity)
    foreign = IndexSpec(replace(encoder.identity, model="another-model"))

    async def make() -> None:
        async with connected(EngineSettings(engine=engine_url)) as engine:
            await create_index(engine, f"{index_name}-lacking", spec)
            await create_index(engine, f"{index_name}-foreign", foreign)
            await engine.request("PUT", f"/{index_name}-lacking/_doc/1?refresh=true", body={"text": "written by hand"})

    asyncio.run(make())
    return index_name


@pytest.mark.engine
def test_an_index_that_lacks_features_or_has_another_encoder_is_a_warning_with_the_fix(
    ailing: str, engine_url: str, examined: Examined
) -> None:
    status, found = examined("--engine", engine_url)
    assert status == 0
    lacking, foreign = found[f"index {ailing}-lacking"], found[f"index {ailing}-foreign"]
    assert lacking["verdict"] == foreign["verdict"] == "warning"
    assert "1 of them lacks features" in lacking["detail"]
    assert lacking["mend"] == f"es-ttc fill {ailing}-lacking"
    assert "another-model@" in foreign["detail"]
    assert foreign["mend"] == "es-ttc serve --encoder another-model"


def test_a_dead_engine_is_missing_and_the_exit_status_says_so(examined: Examined) -> None:
    status, found = examined("--engine", NOWHERE, "--gateway", NOWHERE)
    assert status == 1
    assert found["engine"]["verdict"] == "missing"
    assert NOWHERE in found["engine"]["detail"]
    assert "es-ttc engine up" in found["engine"]["mend"]
    assert found["gateway"]["verdict"] == "ok"
    assert not any(subject.startswith("index") for subject in found)


def test_an_encoder_that_cannot_be_loaded_is_missing(tmp_path: Path, examined: Examined) -> None:
    status, found = examined("--engine", NOWHERE, "--encoder", str(tmp_path))
    assert status == 1
    assert found["encoder"]["verdict"] == "missing"
    assert found["encoder"]["mend"]


@pytest.mark.engine
async def test_a_port_of_another_program_is_no_gateway(opensearch_url: str) -> None:
    check = await checks.check_gateway(opensearch_url)
    assert check.verdict is Status.WARNING
    assert "another program" in check.detail


def test_without_a_backend_nothing_can_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version

    def without(package: str) -> str:
        if package in ("onnxruntime", "torch"):
            raise metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(metadata, "version", without)
    (check,) = [check for check in checks.packages() if check.subject == "encoder backend"]
    assert check.verdict is Status.MISSING
    assert "es-ttc[minilm]" in check.mend


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "mean pooling: all"),
        ({"pooling": "cls"}, "cls pooling: blend, dense, and maxsim with query tokens"),
        ({"late": "0" * 8}, "late interaction: maxsim and blend"),
    ],
)
def test_doctor_names_the_methods_that_suit_the_encoder(change: dict[str, Any], says: str) -> None:
    check = checks.suited_methods(replace(EncoderIdentity("m", "r", 384, 256), **change))
    assert check.verdict is Status.OK
    assert says in check.detail


def test_a_cache_folder_that_cannot_be_made_is_missing(tmp_path: Path) -> None:
    assert checks.cache_folder(tmp_path / "not" / "yet" / "there").verdict is Status.OK
    (tmp_path / "file").write_text("in the way")
    check = checks.cache_folder(tmp_path / "file" / "cache")
    assert check.verdict is Status.MISSING
    assert "ES_TTC_CACHE_DIR" in check.mend
    assert checks.cache_folder(Path("/proc/nope/es-ttc")).verdict is Status.MISSING, "root may write, the kernel won't"


FOUND = [
    Check("python", Status.OK, "3.11"),
    Check("index with-a-long-name", Status.WARNING, "9 documents lack features " * 5, "es-ttc ingest x [FILE]"),
    Check("engine", Status.MISSING, "it cannot be reached", "es-ttc engine up"),
]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_report_fits_the_terminal_and_names_every_mend(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(report(FOUND), summary(FOUND))
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    assert all(cell_len(line) <= width for line in output.splitlines())
    words = " ".join(output.split())
    assert "Not ready: engine." in words
    if width > 40:
        assert "→ es-ttc ingest x [FILE]" in words
        assert "→ es-ttc engine up" in words


def test_the_summary_says_whether_it_works() -> None:
    assert summary(FOUND[:1]).plain.strip() == "Everything needed works."
    assert summary(FOUND[:2]).plain.strip() == "Everything needed works (1 to know about)."


@pytest.mark.parametrize(
    ("version", "verdict", "mend"),
    [
        ((8, 13, 4), Status.WARNING, "upgrade to Elasticsearch 8.19.x or 9.0 or newer"),
        ((8, 19, 13), Status.OK, ""),
    ],
)
def test_a_version_without_maintenance_is_a_warning(version: tuple[int, ...], verdict: Status, mend: str) -> None:
    found = Capabilities("elasticsearch", version, True, "", "basic", 4096, 2**20, 1)
    check = checks.engine_check("http://engine", found)
    assert (check.verdict, check.mend) == (verdict, mend)
    assert check.detail.startswith(f"Elasticsearch {'.'.join(map(str, version))} at http://engine")


def test_the_node_of_engine_up_is_said_to_be_for_trials() -> None:
    version = tuple(map(int, DEFAULT_VERSION.split(".")))
    found = Capabilities("opensearch", version, True, "", "apache-2.0", 16_000, 2**20, 1)
    here, elsewhere = (
        checks.engine_check(url, found) for url in ("http://127.0.0.1:9200", "https://search.example.org")
    )
    assert (here.verdict, elsewhere.verdict) == (Status.OK, Status.WARNING)
    assert "for trials only" in here.detail


@pytest.mark.slow
@pytest.mark.llm
@pytest.mark.parametrize(("api", "verdict"), [("completions", Status.OK), ("chat", Status.WARNING)])
async def test_a_model_of_the_other_kind_is_told_by_its_answer(llm_url: str, api: str, verdict: Status) -> None:
    found = await checks.model(settings_for(llm_url, llm_api=api))
    assert found.verdict is verdict, found
    assert ("ES_TTC_LLM_API=completions" in found.mend) is (api == "chat")
