"""Ingest killed with SIGKILL at random moments and resumed, on both engines: is anything lost, or there twice?"""

import argparse
import asyncio
import json
import random
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.common import heading, table
from es_ttc.engine.connect import connect
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.index import resolve_index
from es_ttc.settings import EngineSettings
from tests.support.killing import ingest_with_kills

WORDS = ["river", "stone", "cloud", "market", "engine", "letter", "garden", "winter", "copper", "music", "paper"]
INDEX = "bench-ingest-kill"


async def run(url: str, arguments: argparse.Namespace, seed: int) -> list[str]:
    rng = random.Random(seed)
    count = arguments.documents
    documents = [{"_id": f"doc-{n}", "text": " ".join(rng.choices(WORDS, k=60)), "n": n} for n in range(count)]
    malformed = set(rng.sample(range(count), 10))
    engine = await connect(EngineSettings(engine=url))
    try:
        product = (await engine.capabilities()).product
        if await engine.exists(INDEX):
            await engine.delete_index(INDEX)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "docs.jsonl"
            lines = ["{broken" if n in malformed else json.dumps(document) for n, document in enumerate(documents)]
            file.write_text("\n".join(lines))
            kill = partial(ingest_with_kills, kills=arguments.kills, span=arguments.span, encoder=arguments.encoder)
            killed = await asyncio.to_thread(kill, url, INDEX, file, rng=rng)
            letters = [json.loads(each) for each in (Path(folder) / f"{INDEX}.rejected.jsonl").open()]
            # A kill between the end of the work and the end of the process makes what follows a run of its own.
            rejected = [(letter["run"], letter["line"] - 1) for letter in letters]
        hits = [hit async for hit in engine.scan(INDEX, {"match_all": {}}, source=True)]
        found = {hit["_source"]["n"]: hit["_source"]["text"] for hit in hits}
        expected = {each["n"]: each["text"] for each in documents if each["n"] not in malformed}
        _, spec = await resolve_index(engine, INDEX)
        held = await contents(engine, INDEX, spec)
        lost = len(expected.keys() - found.keys()) + len(malformed - {line for _, line in rejected})
        doubled = len(hits) - len(found) + len(rejected) - len(set(rejected))
        wrong = sum(found.get(n) != text for n, text in expected.items()) + held.documents - held.states.get("ready", 0)
        await engine.delete_index(INDEX)
    finally:
        await engine.close()
    return [product, str(killed.kills), str(count), str(lost), str(doubled), str(wrong), f"{killed.seconds:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=3000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--span", type=float, default=3.0, help="seconds of work within which a run is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--encoder", default="minilm@onnx")
    parser.add_argument("--engine", action="append", required=True, help="the engine's URL; may be given twice")
    arguments = parser.parse_args()
    rows = [asyncio.run(run(url, arguments, arguments.seed + n)) for n, url in enumerate(arguments.engine)]
    data = f"{arguments.documents} documents of 60 words, 10 lines of them malformed, seed {arguments.seed}"
    print(heading("Ingest, killed and resumed", data=data, packages=("elasticsearch", "opensearch-py")))
    columns = ["engine", "kills", "records", "lost", "doubled", "wrong", "seconds in all"]
    print(table(columns, rows))


if __name__ == "__main__":
    main()
