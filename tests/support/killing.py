"""Kills a real `es-ttc ingest` at random points and resumes it until it is through."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Killed:
    """One run.

    Attributes:
        kills: Times that the process was killed while it was at work.
        outcome: What the last run printed.
        seconds: Wall time of all runs.
    """

    kills: int
    outcome: dict[str, object]
    seconds: float


def ingest_with_kills(
    engine_url: str, index: str, file: Path, *, kills: int, rng: random.Random, encoder: str, span: float = 1.5
) -> Killed:
    """Run the command in the file's folder until it is through.

    It is killed up to ``kills`` times, each within ``span`` seconds of its first checkpoint.

    Raises:
        AssertionError: A run failed by itself.
    """
    command = [sys.executable, "-m", "es_ttc", "ingest", index, file.name]
    command += ["--engine", engine_url, "--encoder", encoder, "--batch-mb", "0.1", "--resume", "--json"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    checkpoint = checkpoint_of(file, index)
    begun = time.monotonic()
    done = 0
    while True:
        process = subprocess.Popen(
            command, cwd=file.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if done < kills and _started(process, checkpoint):
            try:
                process.wait(rng.uniform(0, span))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                done += 1
        out, err = process.communicate(timeout=600)
        if process.returncode == -signal.SIGKILL:
            continue
        assert process.returncode in (0, 1), err
        return Killed(done, json.loads(out), time.monotonic() - begun)


def checkpoint_of(file: Path, index: str) -> Path:
    """Return where the command keeps its checkpoint."""
    return file.parent / f"{index}.rejected.checkpoint.json"


def _started(process: "subprocess.Popen[str]", checkpoint: Path) -> bool:
    """Wait until the run has written its first checkpoint, which it does just before it reads."""
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
    while process.poll() is None:
        if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
            return True
        time.sleep(0.02)
    return False
