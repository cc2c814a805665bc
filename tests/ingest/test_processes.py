"""`es-ttc ingest --processes`: several encoders store what one stores, and the end of a process is no mystery."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.index.ingest import DeadLetterList, Documents, IngestOptions, IngestResult, Inputs, ingest
from es_ttc.index.ingest.encode_parts import EncodeProcesses
from es_ttc.index.mappings.encoder import load_encoder_for
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.ingest.test_ingest import stored

# Repeated ids far apart, empty texts, and a text of many windows among short ones.
DOCUMENTS = [
    {"_id": str(number % 280), "text": "" if number % 50 == 7 else f"text {number} " + "word " * (number % 60)}
    for number in range(300)
] + [{"_id": "long", "text": "word " * 4000}]


async def test_several_encoders_store_what_one_stores(
    opensearch_url: str, index_name: str, encoder: Encoder, spec: IndexSpec
) -> None:
    load = partial(load_encoder_for, spec.encoder, "minilm@onnx")
    engine = await connect(EngineSettings(engine=opensearch_url))
    outcomes: list[IngestResult] = []
    try:
        for name, processes in ((f"{index_name}-1", None), (f"{index_name}-2", EncodeProcesses(2, load))):
            await create_index(engine, name, spec)
            inputs, options = Inputs([Documents(DOCUMENTS)]), IngestOptions(processes=processes)
            letters = DeadLetterList()
            outcomes.append(await ingest(engine, name, inputs, encoder, dead_letters=letters, options=options))
    finally:
        await engine.close()
    one, two = outcomes
    assert (two.written, two.empty, two.truncated, two.repeated) == (301, 6, one.truncated, 20)
    assert (one.written, one.empty, one.repeated) == (301, 6, 20)
    assert (one.processes, two.processes) == (1, 2)
    assert 0 < two.encoder_busy <= 1
    first = await stored(opensearch_url, f"{index_name}-1")
    assert len(first) == 281
    assert first["3"]["_source"]["text"].startswith("text 283 ")
    assert first == await stored(opensearch_url, f"{index_name}-2")


def test_a_killed_process_is_named_and_the_run_resumes(opensearch_url: str, index_name: str, tmp_path: Path) -> None:
    file = tmp_path / "docs.jsonl"
    file.write_text("\n".join(json.dumps({"_id": str(n), "text": f"text {n} " + "word " * 80}) for n in range(400)))
    command = [sys.executable, "-m", "es_ttc", "ingest", index_name, file.name, "--engine", opensearch_url]
    command += ["--encoder", "minilm@onnx", "--processes", "2", "--batch-mb", "0.1", "--json"]

    def start(*further: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*command, *further],
            cwd=tmp_path,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    run = start()
    encoding_processes(run, 1)[0].kill()  # the second one may be starting
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (1, "")
    assert "a process that encodes has ended unexpectedly (was it killed" in err
    assert "run the same command with --resume to go on" in err
    assert "Traceback" not in err

    run = start("--resume")
    orphans = encoding_processes(run, 2)
    run.kill()
    run.communicate(timeout=60)
    _, alive = psutil.wait_procs(orphans, timeout=30)
    assert not alive

    out, err = start("--resume").communicate(timeout=120)
    outcome = json.loads(out)
    assert outcome["resumed_at"] + outcome["written"] + outcome["skipped"] == 400, err
    assert outcome["processes"] == 2


def encoding_processes(run: "subprocess.Popen[str]", number: int) -> list[psutil.Process]:
    """Wait until a run has a number of processes, and return them."""
    until = time.monotonic() + 60
    while time.monotonic() < until and run.poll() is None:
        found = [each for each in psutil.Process(run.pid).children() if "spawn_main" in " ".join(each.cmdline())]
        if len(found) >= number:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no processes that encode: {run.communicate()[1]}")
