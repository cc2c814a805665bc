"""A real engine that is killed and restarted while a real `es-ttc ingest` writes to it."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from es_ttc.engine.connect import connected
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.indices import Index
from es_ttc.settings import EngineSettings
from tests.serving.client import call
from tests.support.own_node import OwnNode

pytestmark = pytest.mark.engine

DOCUMENTS = 240
INDEX = "killed"


async def test_ingest_goes_on_when_the_engine_is_back(own_node: OwnNode, tmp_path: Path) -> None:
    rng = random.Random(5)
    words = ["river", "stone", "cloud", "market", "engine", "letter", "garden", "winter", "copper", "music"]
    documents = {str(number): {"text": " ".join(rng.choices(words, k=25)), "n": number} for number in range(DOCUMENTS)}
    file = tmp_path / "docs.jsonl"
    file.write_text("\n".join(json.dumps({"_id": one, **document}) for one, document in documents.items()))
    command = [sys.executable, "-m", "es_ttc", "ingest", INDEX, file.name, "--engine", own_node.url]
    command += ["--encoder", "minilm@onnx", "--batch-mb", "0.1", "--json"]
    _killed_meanwhile(own_node, command, tmp_path)
    async with connected(EngineSettings(engine=own_node.url)) as engine:
        await engine.refresh(INDEX)
        found = {hit["_id"]: hit["_source"] async for hit in engine.scan(INDEX, {"match_all": {}}, source=True)}
        spec = (await Index.own(engine, INDEX)).spec
        held = await contents(engine, INDEX, spec)
    assert found == documents
    assert held.states == {"ready": DOCUMENTS}


def _killed_meanwhile(node: OwnNode, command: list[str], folder: Path) -> None:
    """Run a command, kill the node once something is written, start it again, and await a good end."""
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.PIPE, text=True
    ) as ingest:
        while not _written(node.url) and ingest.poll() is None:
            time.sleep(0.02)
        node.kill()
        assert ingest.poll() is None
        node.restart()
        out, _ = ingest.communicate(timeout=300)
    assert ingest.returncode == 0, out


def _written(url: str) -> int:
    """Return how many documents are there already."""
    refreshed = call(url, "POST", f"/{INDEX}/_refresh").status == 200
    return int(call(url, "GET", f"/{INDEX}/_count").json()["count"]) if refreshed else 0
