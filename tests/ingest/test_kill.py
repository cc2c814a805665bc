"""A real `es-ttc ingest`, killed without warning and resumed: nothing is lost, nothing is there twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.index import resolve_index

DOCUMENTS = 300
MALFORMED = (50, 51, 200, 299)
KILLS = 3


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True)
async def test_nothing_is_lost_or_doubled(engine: Engine, index_name: str, tmp_path: Path) -> None:
    rng = random.Random(11)
    words = ["river", "stone", "cloud", "market", "engine", "letter", "garden", "winter", "copper", "music"]
    documents = [{"_id": str(n), "text": " ".join(rng.choices(words, k=25)), "n": n} for n in range(DOCUMENTS)]
    lines = [json.dumps(document) if n not in MALFORMED else "{broken" for n, document in enumerate(documents)]
    file = tmp_path / "docs.jsonl"
    file.write_text("\n".join(lines))
    checkpoint = tmp_path / f"{index_name}.rejected.checkpoint.json"
    command = [sys.executable, "-m", "es_ttc", "ingest", index_name, file.name, "--engine", engine.url]
    command += ["--encoder", "minilm@onnx", "--batch-mb", "0.1", "--resume", "--json"]
    assert ingest_with_kills(command, checkpoint, rng) >= 2
    found = {hit["_id"]: hit["_source"] async for hit in engine.scan(index_name, {"match_all": {}}, source=True)}
    expected = {each["_id"]: {"text": each["text"], "n": each["n"]} for each in documents if each["n"] not in MALFORMED}
    assert found == expected
    _, spec = await resolve_index(engine, index_name)
    held = await contents(engine, index_name, spec)
    assert held.states == {"ready": len(expected)}
    letters = map(json.loads, (tmp_path / f"{index_name}.rejected.jsonl").read_text().splitlines())
    # A kill between the end of the work and the end of the process makes what follows a run of its own.
    by_run: dict[str, list[int]] = {}
    for letter in letters:
        by_run.setdefault(letter["run"], []).append(letter["line"])
    assert by_run
    assert all(sorted(rejected) == [n + 1 for n in MALFORMED] for rejected in by_run.values())
    assert not checkpoint.exists()


def ingest_with_kills(command: list[str], checkpoint: Path, rng: random.Random) -> int:
    """Run a command until it is through, killed after it began to read; return how often it was."""
    kills, status = 0, -signal.SIGKILL.value
    while status == -signal.SIGKILL:
        before = written(checkpoint)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        with subprocess.Popen(command, cwd=checkpoint.parent, env=environment, **pipes) as process:
            while kills < KILLS and process.poll() is None and written(checkpoint) == before:
                time.sleep(0.02)
            try:
                process.wait(rng.uniform(0, 0.8) if kills < KILLS else 600)
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
            _, errors = process.communicate()
            status = process.returncode
    assert status in (0, 1), errors
    return kills


def written(checkpoint: Path) -> int:
    """When the checkpoint was written, which a run does just before it reads; 0 where there is none."""
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
