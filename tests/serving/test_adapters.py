"""An index written with a LoRA adapter is queried with that adapter alone: from the command line and at the gateway."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from es_ttc.cli.app import run
from es_ttc.encoders import load_encoder
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.packages import minilm_for_torch
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import Reply, search
from tests.support.adapters import make_adapter

NAME = "minilm@torch:float32"
TEXTS = ("The court heard the appeal.", "Vitamin D and bone density.", "Dogs chase cats in the garden.")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opensearch_url: str) -> Path:
    """A working folder with two adapters and some documents."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_TTC_ENGINE", opensearch_url)
    monkeypatch.setenv("ES_TTC_ENCODER", NAME)
    for seed, name in enumerate(("law", "medicine")):
        make_adapter(tmp_path / name, seed, cache=tmp_path)
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(TEXTS)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def index(here: Path, index_name: str) -> str:
    """An index made and filled from the command line with the adapter ``law``."""
    assert run(["index", "create", index_name, "--adapter", "law"]) == 0
    assert run(["ingest", index_name, "docs.jsonl", "--adapter", "law"]) == 0
    return index_name


@pytest.fixture
def shipping(here: Path) -> Path:
    """The same model with ``law`` in its folder."""
    files = minilm_for_torch(FileHashes(here))
    folder = shutil.copytree(files.folder, here / files.model)
    shutil.copytree(here / "law", folder / "adapters" / "law")
    return folder


def ask(engine: str, index: str, encoder: str) -> Reply:
    """Search with our section through a gateway that may load one encoder."""
    settings = GatewaySettings(engine=engine, port=0, encoder=encoder, scoring_timeout_ms=20_000)
    section = {"method": "maxsim", "query_text": "an appeal in court"}
    with running_gateway(settings) as gateway:
        return search(gateway, index, {"query": {"match_all": {}}, "rescore": {"ttc": section}})


def rankings(output: str) -> Any:
    """Read what a search printed; in this process the gateway's log stands before it."""
    return json.loads(output[output.index("{\n") :])["rankings"]


@pytest.mark.engine
def test_only_the_adapter_that_wrote_an_index_reads_it(
    index: str, shipping: Path, opensearch_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    law = load_encoder(NAME, adapter="law")
    capsys.readouterr()
    assert run(["index", "show", index, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["spec"]["encoder"]["adapter"] == law.identity.adapter
    assert shown["states"] == {"ready": 3}
    for encoder in (f"{NAME}+law", f"{shipping}@torch:float32"):  # the second finds the index's own in its folder
        reply = ask(opensearch_url, index, encoder)
        assert reply.status == 200
        assert reply.json()["ttc"]["applied"]
        assert reply.json()["ttc"]["encoder"] == law.identity.key
    for encoder in (NAME, f"{NAME}+medicine"):
        reply = ask(opensearch_url, index, encoder)
        assert (reply.status, reply.json()["ttc"]["applied"]) == (200, False)
        assert "`es-ttc serve --encoder minilm+law`" in reply.json()["ttc"]["reason"]


@pytest.mark.engine
def test_commands_take_the_adapter_or_refuse(
    index: str, shipping: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search_for = ["search", index, "an appeal", "--json"]
    assert run([*search_for, "--adapter", "law"]) == 0
    with_flag = rankings(capsys.readouterr().out)
    monkeypatch.setenv("ES_TTC_ENCODER", f"{shipping}@torch:float32")
    assert run(search_for) == 0
    assert rankings(capsys.readouterr().out) == with_flag
    monkeypatch.setenv("ES_TTC_ENCODER", NAME)
    for wrong in (["--adapter", "medicine"], []):
        assert run([*search_for, *wrong]) == 1
        assert "set ES_TTC_ENCODER to minilm+law" in capsys.readouterr().err
        assert run(["ingest", index, "docs.jsonl", *wrong]) == 1
        assert "holds vectors of" in capsys.readouterr().err
    assert run(["index", "create", "unused", "--adapter", "lwa"]) == 1
    assert "adapter [lwa] is no folder" in capsys.readouterr().err
