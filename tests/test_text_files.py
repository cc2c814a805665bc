"""Files with data that exceed a limit: one sentence from every command that reads them."""

import gzip
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from es_ttc.common import text_files
from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation.datasets import load_collection
from es_ttc.lab.judging import formats
from es_ttc.lab.judging.formats import Format
from es_ttc.lab.learning.evaluation import evaluation_of_trial
from es_ttc.lab.learning.query_log import read_log

LONG = "x" * 5_000
DEEP = "[" * 900 + "]" * 900


def judgements(form: Format) -> Callable[[Path], object]:
    return lambda file: formats.read_judgements(form, file, {}, split="test", highest=None)


def collection(file: Path) -> object:
    (file.parent / "qrels").mkdir()
    (file.parent / "qrels" / "test.tsv").touch()
    (file.parent / "queries.jsonl").touch()
    return load_collection(file.parent)


@pytest.mark.parametrize(
    ("name", "content", "read", "said"),
    [
        ("a.log", f"a\n{LONG}\n", read_log, "line 2 of .* is longer than 4,000 bytes"),
        ("a.csv", f"q\n{LONG}\n", read_log, "line 2 of .* is longer than 4,000 characters"),
        ("a.csv", f"{LONG}\n", read_log, "first line of .* is longer than 4,000 characters"),
        ("a.csv", "q," * 10_000, read_log, "has 10,001 columns: drop all but 10,000"),
        ("a.jsonl", f'{{"q": {DEEP}}}', read_log, "line 1 of .* cannot be read as JSON"),
        ("corpus.jsonl", f'{{"_id": "{LONG}"}}', collection, "line 1 of .* is longer than"),
        ("corpus.jsonl", f'{{"_id": 1, "text": "", "a": {DEEP}}}', collection, "line 1 is not JSON: .* 200 levels"),
        ("qrels", LONG, judgements(Format.TREC), "line 1 of .* is longer than"),
        ("ratings", f"q,{LONG},1", judgements(Format.QUEPID), "first line of .* is longer than"),
        ("list", f'["{LONG}"]', judgements(Format.WORKBENCH), "is longer than 4,000 bytes"),
        ("list", DEEP, judgements(Format.WORKBENCH), "is not JSON: it has more than 200 levels"),
        ("trial.jsonl", LONG, lambda file: evaluation_of_trial(file, "shop", {}), "line 1 of .* is longer than"),
    ],
    ids=map(str, count()),
)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_beyond_a_limit_is_refused(
    name: str,
    content: str,
    read: Callable[[Path], object],
    said: str,
    compressed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_files, "MAX_LINE", 4_000 if LONG in content else 10**6)
    file = tmp_path / name
    file.write_bytes(gzip.compress(content.encode()) if compressed else content.encode())
    with pytest.raises(ConfigurationError, match=said):
        read(file)
