import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.ingest.checkpoint import CompletedPrefix, Fingerprint, IngestCheckpoint, IngestRunKey, fingerprints
from es_ttc.index.ingest.dead_letters import DeadLetter, DeadLetterFile


@pytest.fixture
def job(tmp_path: Path) -> IngestRunKey:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"a": 1}\n' * 10)
    return IngestRunKey("articles", "uuid-1", "m@r/4x16", None, (Fingerprint.of(str(path)),))


def test_settled_is_the_leading_run_without_a_gap() -> None:
    settled = CompletedPrefix(10)
    order = list(range(10, 60))
    random.Random(3).shuffle(order)
    done: set[int] = set()
    for sequence in order:
        settled.add(sequence)
        done.add(sequence)
        expected = next(each for each in range(10, 61) if each not in done)
        assert settled.position == expected


def test_a_checkpoint_comes_back_for_the_same_job(tmp_path: Path, job: IngestRunKey) -> None:
    path = tmp_path / "checkpoint.json"
    assert IngestCheckpoint.load(path, job) is None
    IngestCheckpoint(path, "run-1", job).save(7)
    back = IngestCheckpoint.load(path, job)
    assert back is not None
    assert (back.position, back.run, back.job) == (7, "run-1", job)
    back.remove()
    assert IngestCheckpoint.load(path, job) is None
    assert [each.name for each in tmp_path.iterdir()] == ["docs.jsonl"]


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"index_uuid": "uuid-2"}, r"index \[articles\]"),
        ({"encoder": "other"}, "the encoder"),
        ({"id_field": "sku"}, "the id field"),
        ({"inputs": ()}, "the list of files"),
    ],
)
def test_another_job_is_not_resumed(tmp_path: Path, job: IngestRunKey, change: dict[str, object], subject: str) -> None:
    path = tmp_path / "checkpoint.json"
    IngestCheckpoint(path, "run-1", job).save(7)
    with pytest.raises(InvalidRequest, match=f"{subject}.*run again without --resume"):
        IngestCheckpoint.load(path, replace(job, **change))  # type: ignore[arg-type]


def test_a_changed_file_is_noticed_even_at_the_same_size(tmp_path: Path, job: IngestRunKey) -> None:
    path = tmp_path / "checkpoint.json"
    IngestCheckpoint(path, "run-1", job).save(7)
    docs = Path(job.inputs[0].name)
    before = docs.stat()
    docs.write_text('{"b": 1}\n' * 10)
    os.utime(docs, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = replace(job, inputs=(Fingerprint.of(str(docs)),))
    with pytest.raises(InvalidRequest, match=r"\[.*docs.jsonl\]"):
        IngestCheckpoint.load(path, changed)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, job: IngestRunKey) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text('{"run": "x"')
    with pytest.raises(InvalidRequest, match="cannot be read"):
        IngestCheckpoint.load(path, job)


def test_standard_input_has_no_fingerprint() -> None:
    assert fingerprints(["-"]) is None


def letter(sequence: int) -> DeadLetter:
    return DeadLetter(sequence, "a.jsonl", sequence + 1, None, 400, "bad \ud800", {"text": "\ud800 ไทย"})


def test_resuming_drops_the_letters_that_will_be_written_again(tmp_path: Path) -> None:
    path = tmp_path / "rejected.jsonl"
    for run in ("old", "new"):
        with DeadLetterFile(path, run) as letters:
            for sequence in (3, 9, 5):
                letters.add(letter(sequence))
            letters.sync()
    with path.open("ab") as file:
        file.write(b'{"run": "new", "seq')
    DeadLetterFile(path, "new").forget(6)
    entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [(each["run"], each["sequence"]) for each in entries] == [
        ("old", 3),
        ("old", 9),
        ("old", 5),
        ("new", 3),
        ("new", 5),
    ]
    assert entries[0]["document"] == {"text": "\ud800 ไทย"}
    assert entries[0]["line"] == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "rejected.jsonl"
    path.symlink_to("/dev/full")
    letters = DeadLetterFile(path, "run")
    letters.add(letter(1))
    for end in (letters.sync, letters.__exit__):
        with pytest.raises(ConfigurationError, match=r"rejected\.jsonl.* cannot be written: No space left"):
            end()


def test_no_rejection_makes_no_file(tmp_path: Path) -> None:
    with DeadLetterFile(tmp_path / "rejected.jsonl", "run") as letters:
        letters.sync()
        letters.forget(0)
    assert list(tmp_path.iterdir()) == []
