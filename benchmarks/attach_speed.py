"""Documents a second of `es-ttc attach` on each runtime of ONNX files. Needs a running engine.

    python -m benchmarks.attach_speed --engine http://127.0.0.1:9200 --before ../before

Attaches the first documents of SciFact, with `--encoder minilm@onnx:onnxruntime` and `minilm@onnx:openvino` in turns;
with `--before`, the folder of another version of es-ttc, also with that. Processor time is that of the command, its
start included, without the engine's.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from benchmarks.blend import DATA
from benchmarks.common import heading, table
from benchmarks.served import bulk, delete, opened
from es_ttc.engine.protocol import Engine

INDEX = "benchmark-attach-speed"
HERE = Path(__file__).parents[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--before", type=Path, help="folder of another version, with its compiled loops")
    arguments = parser.parse_args()
    variants = {"ONNX Runtime": (HERE, "minilm@onnx:onnxruntime"), "OpenVINO": (HERE, "minilm@onnx:openvino")}
    if arguments.before:
        variants = {"before": (arguments.before, "minilm@onnx"), **variants}
    data = f"the first {arguments.documents} documents of SciFact"
    print(heading("Attach", data=data, packages=("numpy", "onnxruntime", "openvino")))
    asyncio.run(_with_engine(arguments.engine, _write, arguments.documents))
    rows = []
    for _ in range(arguments.turns):
        for name, (folder, encoder) in variants.items():
            _command(folder, "detach", INDEX, "--engine", arguments.engine, "--yes")
            rows.append([name, *_attached(folder, arguments.engine, encoder)])
            print(rows[-1], file=sys.stderr, flush=True)
    _command(HERE, "detach", INDEX, "--engine", arguments.engine, "--yes")
    asyncio.run(_with_engine(arguments.engine, _delete))
    columns = ("version", "documents/s", "the encoder's share of the time", "processor ms a document")
    print(table(columns, rows))


async def _with_engine(url: str, work: Any, *arguments: Any) -> None:
    async with opened(url) as engine:
        await work(engine, *arguments)


async def _write(engine: Engine, count: int) -> None:
    await _delete(engine)
    await engine.create_index(INDEX, {"settings": {"index": {"number_of_shards": 1, "number_of_replicas": 0}}})
    lines: list[bytes] = []
    with (DATA / "scifact" / "corpus.jsonl").open("rb") as file:
        for document in map(orjson.loads, islice(file, count)):
            lines.append(orjson.dumps({"index": {"_id": document["_id"]}}))
            lines.append(orjson.dumps({"title": document["title"], "text": document["text"]}))
    await bulk(engine, INDEX, lines, at_once=1000)
    await engine.refresh(INDEX)


async def _delete(engine: Engine) -> None:
    await delete(engine, INDEX)


def _attached(folder: Path, url: str, encoder: str) -> list[str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = "--text-fields", "title,text", "--engine", url, "--encoder", encoder, "--json"
    found = json.loads(_command(folder, "attach", INDEX, *arguments))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (filled,) = found["indices"]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rate, busy = filled["written"] / filled["seconds"], filled["encoder_seconds"] / filled["seconds"]
    return [f"{rate:.1f}", f"{busy:.0%}", f"{1000 * seconds / filled['written']:.1f}"]


def _command(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder.resolve())}
    command = [sys.executable, "-m", "es_ttc", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    main()
