"""A real `es-ttc ingest`, killed without warning and resumed: nothing is lost, nothing is there twice."""

import json
import random
import signal
import time
from pathlib import Path

import pytest

from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.indices import Index
from tests.support import forked

DOCUMENTS = 300
MALFORMED = (50, 51, 200, 299)
KILLS = 3


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True)
async def test_killed_ingest_resumed_loses_and_doubles_no_document(
    engine: Engine, index_name: str, tmp_path: Path
) -> None:
    rng = random.Random(11)
    words = ["river", "stone", "cloud", "market", "engine", "letter", "garden", "winter", "copper", "music"]
    documents = [{"_id": str(n), "text": " ".join(rng.choices(words, k=25)), "n": n} for n in range(DOCUMENTS)]
    lines = [json.dumps(document) if n not in MALFORMED else "{broken" for n, document in enumerate(documents)]
    file = tmp_path / "docs.jsonl"
    file.write_text("\n".join(lines))
    checkpoint = tmp_path / f"{index_name}.rejected.checkpoint.json"
    arguments = ["ingest", index_name, file.name, "--engine", engine.url]
    arguments += ["--encoder", "minilm@onnx", "--batch-mb", "0.1", "--resume", "--json"]
    assert ingest_with_kills(arguments, checkpoint, rng) >= 2
    found = {hit["_id"]: hit["_source"] async for hit in engine.scan(index_name, {"match_all": {}}, source=True)}
    expected = {each["_id"]: {"text": each["text"], "n": each["n"]} for each in documents if each["n"] not in MALFORMED}
    assert found == expected
    spec = (await Index.own(engine, index_name)).spec
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


def ingest_with_kills(arguments: list[str], checkpoint: Path, rng: random.Random) -> int:
    """Run a command until it is through, killed after it began to read; return how often it was."""
    kills, status = 0, -signal.SIGKILL.value
    log = checkpoint.with_name("printed")
    while status == -signal.SIGKILL:
        before = written(checkpoint)
        process = forked.command(arguments, checkpoint.parent, {"HF_HUB_OFFLINE": "1"}, log)
        while kills < KILLS and process.is_alive() and written(checkpoint) == before:
            time.sleep(0.02)
        process.join(rng.uniform(0, 0.8) if kills < KILLS else 600)
        if process.is_alive():
            process.kill()
            process.join()
            kills += 1
        assert process.exitcode is not None
        status = process.exitcode
    assert status in (0, 1), log.read_text()
    return kills


def written(checkpoint: Path) -> int:
    """When the checkpoint was written, which a run does just before it reads; 0 where there is none."""
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
