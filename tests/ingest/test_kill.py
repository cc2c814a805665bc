"""A real `es-ttc ingest`, killed without warning and resumed: nothing is lost, nothing is there twice."""

import json
import random
from pathlib import Path

from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.index import resolve_index
from tests.support.killing import checkpoint_of, ingest_with_kills

DOCUMENTS = 300
MALFORMED = (50, 51, 200, 299)


async def test_nothing_is_lost_or_doubled(engine: Engine, index_name: str, tmp_path: Path) -> None:
    rng = random.Random(11)
    words = ["river", "stone", "cloud", "market", "engine", "letter", "garden", "winter", "copper", "music"]
    documents = [{"_id": str(n), "text": " ".join(rng.choices(words, k=25)), "n": n} for n in range(DOCUMENTS)]
    lines = [json.dumps(document) if n not in MALFORMED else "{broken" for n, document in enumerate(documents)]
    file = tmp_path / "docs.jsonl"
    file.write_text("\n".join(lines))
    killed = ingest_with_kills(engine.url, index_name, file, kills=3, rng=rng, encoder="minilm@onnx", span=0.8)
    assert killed.kills >= 2
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
    assert not checkpoint_of(file, index_name).exists()
