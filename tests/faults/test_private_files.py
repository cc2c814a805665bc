import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_ttc.cli.app import run


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return the mode of everything below a folder."""
    return {str(path.relative_to(folder)): f"{path.stat().st_mode & 0o777:o}" for path in sorted(folder.rglob("*"))}


def test_an_ingest_writes_files_for_its_owner_alone(
    tmp_path: Path, opensearch_url: str, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")
    documents = [{"_id": "1", "text": {"not": "a text"}}, {"_id": "2", "text": "a text"}]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, documents)))
    command = ["ingest", index_name, "docs.jsonl", "--engine", opensearch_url]
    assert run(["index", "create", index_name, "--engine", opensearch_url]) == 0
    assert run(command) == 1
    assert modes(tmp_path) == {"docs.jsonl": "644", f"{index_name}.rejected.jsonl": "600"}


def test_a_checkpoint_is_its_owners_alone_and_a_chosen_mode_is_kept(
    tmp_path: Path, opensearch_url: str, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")
    (tmp_path / "docs.jsonl").write_text('{"_id": "1", "text": {"a": 1}}\n{"_id": "2", "text": "b"}')
    letters = tmp_path / f"{index_name}.rejected.jsonl"
    letters.touch()
    letters.chmod(0o640)
    command = ["ingest", index_name, "docs.jsonl", "--engine", opensearch_url]
    assert run(["index", "create", index_name, "--engine", opensearch_url]) == 0
    _block(opensearch_url, index_name, True)
    assert run(command) == 1
    _block(opensearch_url, index_name, None)
    checkpoint = f"{index_name}.rejected.checkpoint.json"
    assert modes(tmp_path) == {"docs.jsonl": "644", letters.name: "640", checkpoint: "600"}
    assert run([*command, "--resume"]) == 1
    assert modes(tmp_path) == {"docs.jsonl": "644", letters.name: "640"}


def test_an_evaluation_keeps_encodings_for_its_owner_alone(
    tmp_path: Path, collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    monkeypatch.setenv("ES_TTC_CACHE_DIR", str(cache))
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")
    assert run(["evaluate", str(collection), "--methods", "dense", "--engine", "memory", "--json"]) == 0
    found = modes(cache / "encodings")
    assert found
    assert set(found.values()) == {"600"}
    assert f"{(cache / 'encodings').stat().st_mode & 0o777:o}" == "700"
    assert f"{cache.stat().st_mode & 0o777:o}" == "755"


def test_a_search_keeps_its_memory_for_its_owner_alone(tmp_path: Path) -> None:
    assert run(["discover", "run", str(tmp_path / "search")]) == 1  # it holds no search yet, and no data are named
    assert modes(tmp_path) == {"search": "700", "search/memory.jsonl": "600"}


def _block(url: str, index: str, value: object) -> None:
    body = json.dumps({"index.blocks.write": value}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/{index}/_settings", body, headers, method="PUT")
    urllib.request.urlopen(request, timeout=60).close()
