"""What the tests of faults share: what those of the gateway have, and a small collection."""

import json
from pathlib import Path

import pytest

from tests.serving.conftest import all_stacks, encoder, stack

__all__ = ["all_stacks", "encoder", "stack"]


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A small BEIR folder."""
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    texts = ("a heron", "a kettle", "a train")
    documents = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": "q1", "text": "bird"}, {"_id": "q2", "text": "tea"}]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td0\t1\nq2\td1\t1\n")
    return folder
