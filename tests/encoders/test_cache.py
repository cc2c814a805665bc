import multiprocessing
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from es_ttc.encoders import CachedEncoder, Encoder, Encodings, load_encoder
from tests.encoders.conftest import SENTENCES
from tests.support.encoders import Counting

TEXTS = [*SENTENCES, "", SENTENCES[0], "\ud800 half"]


@pytest.fixture
def counting(encoder: Encoder) -> Counting:
    return Counting(encoder)


@pytest.fixture
def cached(counting: Counting, tmp_path: Path) -> Iterator[CachedEncoder]:
    encoder = CachedEncoder(counting, tmp_path)
    yield encoder
    encoder.close()


def assert_equal(one: Encodings, other: Encodings) -> None:
    assert np.array_equal(one.pooled, other.pooled)
    assert np.array_equal(one.truncated, other.truncated)
    assert len(one.tokens) == len(other.tokens)
    for pair in zip([*one.tokens, *one.offsets], [*other.tokens, *other.offsets], strict=True):
        assert pair[0].dtype == pair[1].dtype
        assert np.array_equal(*pair)


@pytest.mark.parametrize("tokens", [True, False])
def test_a_second_run_encodes_nothing_and_gives_the_same(
    cached: CachedEncoder, counting: Counting, encoder: Encoder, tokens: bool, tmp_path: Path
) -> None:
    expected = encoder.encode(TEXTS, tokens=tokens, max_tokens=8)
    assert_equal(cached.encode(TEXTS, tokens=tokens, max_tokens=8), expected)
    assert len(counting.seen) == len(set(TEXTS))
    assert_equal(
        cached.encode(TEXTS[::-1], tokens=tokens, max_tokens=8),
        encoder.encode(TEXTS[::-1], tokens=tokens, max_tokens=8),
    )
    again = CachedEncoder(counting, tmp_path)
    assert_equal(again.encode(TEXTS, tokens=tokens, max_tokens=8), expected)
    again.close()
    assert len(counting.seen) == len(set(TEXTS))


def test_only_what_is_new_is_encoded(cached: CachedEncoder, counting: Counting) -> None:
    cached.encode(SENTENCES[:3])
    cached.encode(SENTENCES)
    assert counting.seen == SENTENCES


def test_cached_encoder_without_texts_gives_no_vectors(cached: CachedEncoder) -> None:
    result = cached.encode([])
    assert result.pooled.shape == (0, 384)
    assert result.tokens == []


def test_whatever_changes_the_answer_is_part_of_the_key(
    cached: CachedEncoder, counting: Counting, encoder: Encoder, tmp_path: Path
) -> None:
    text = SENTENCES[:1]
    cached.encode(text)
    cached.encode(text, role="query")
    cached.encode(text, max_tokens=4)
    cached.encode(text, tokens=False)
    assert len(counting.seen) == 4
    other = Counting(encoder, backend="another arithmetic")
    neighbour = CachedEncoder(other, tmp_path)
    neighbour.encode(text)
    neighbour.close()
    assert len(other.seen) == 1


def test_identity_and_backend_are_the_encoders(cached: CachedEncoder, encoder: Encoder) -> None:
    assert cached.identity == encoder.identity
    assert cached.backend == encoder.backend


def test_results_may_be_changed_by_the_caller(cached: CachedEncoder, encoder: Encoder) -> None:
    cached.encode(SENTENCES)
    result = cached.encode(SENTENCES)
    result.tokens[0][:] = 0
    result.pooled[:] = 0
    assert_equal(cached.encode(SENTENCES), encoder.encode(SENTENCES))


@pytest.mark.parametrize("damage", ["one bit", "cut", "empty"])
def test_a_damaged_entry_is_encoded_again(
    cached: CachedEncoder, counting: Counting, encoder: Encoder, tmp_path: Path, damage: str
) -> None:
    cached.encode(SENTENCES)
    (path,) = tmp_path.glob("*.sqlite")
    connection = sqlite3.connect(path)
    (value,) = connection.execute("SELECT value FROM vectors WHERE id = 2").fetchone()
    flipped = value[:500] + bytes([value[500] ^ 1]) + value[501:]
    changed = {"one bit": flipped, "cut": value[:300], "empty": b""}[damage]
    connection.execute("UPDATE vectors SET value = ? WHERE id = 2", (changed,))
    connection.commit()
    connection.close()
    counting.seen.clear()
    assert_equal(cached.encode(SENTENCES), encoder.encode(SENTENCES))
    assert len(counting.seen) == 1
    cached.encode(SENTENCES)
    assert len(counting.seen) == 1


def test_a_damaged_file_is_begun_again(counting: Counting, encoder: Encoder, tmp_path: Path) -> None:
    first = CachedEncoder(counting, tmp_path)
    first.encode(SENTENCES)
    first.close()
    (path,) = tmp_path.glob("*.sqlite")
    path.write_bytes(b"this is no database, and long enough to be looked at" * 1000)
    second = CachedEncoder(counting, tmp_path)
    for _ in range(2):
        assert_equal(second.encode(SENTENCES), encoder.encode(SENTENCES))
    second.close()
    assert len(counting.seen) == 2 * len(SENTENCES)


def test_damage_while_it_is_open(cached: CachedEncoder, encoder: Encoder, tmp_path: Path) -> None:
    texts = [f"{text} {number}" for text in SENTENCES for number in range(4)]
    cached.encode(texts)
    (path,) = tmp_path.glob("*.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with path.open("r+b") as file:
        file.seek(16_384)
        file.write(b"\xff" * (path.stat().st_size - 16_384))
    for _ in range(2):
        assert_equal(cached.encode(texts), encoder.encode(texts))


def test_the_size_is_bounded_and_the_longest_unused_go_first(counting: Counting, tmp_path: Path) -> None:
    size = 384 * 4
    cached = CachedEncoder(counting, tmp_path, max_bytes=20 * (size + 13))
    texts = [f"text {number}" for number in range(30)]
    for text in texts:
        cached.encode([text], tokens=False)
    counting.seen.clear()
    cached.encode(texts[::-1][:15], tokens=False)
    assert counting.seen == []
    cached.encode(texts[:3], tokens=False)
    assert counting.seen == texts[:3]
    cached.close()
    (path,) = tmp_path.glob("*.sqlite")
    connection = sqlite3.connect(path)
    ((entries, total), (vectors,)) = (
        connection.execute("SELECT COUNT(*), SUM(size) FROM entries").fetchone(),
        connection.execute("SELECT COUNT(*) FROM vectors").fetchone(),
    )
    connection.close()
    assert entries == vectors
    assert total <= 20 * (size + 13)


def test_a_folder_that_can_not_take_more_costs_nothing_but_time(
    cached: CachedEncoder, counting: Counting, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    # SQLite's own way to show a full disk.
    connection = cached._store._open
    assert connection is not None
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(2):
        assert_equal(cached.encode(SENTENCES), encoder.encode(SENTENCES))
    assert counting.seen == SENTENCES * 2
    assert "could not be written" in caplog.text


def _encode_in_a_process(folder: Path, first: int, results: "multiprocessing.Queue[int]") -> None:
    from es_ttc.encoders import load_encoder

    counting = Counting(load_encoder("minilm@onnx", threads=1))
    cached = CachedEncoder(counting, folder)
    for number in range(first, first + 30):
        cached.encode([f"text number {number % 40}", f"other {number % 40}"])
    cached.close()
    results.put(len(counting.seen))


def test_cache_of_two_processes_at_once(tmp_path: Path, counting: Counting, encoder: Encoder) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_encode_in_a_process, args=(tmp_path, first, results)) for first in (0, 20)]
    for process in processes:
        process.start()
    seen = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert 80 <= sum(seen) <= 120
    cached = CachedEncoder(counting, tmp_path)
    texts = [f"{word} {number}" for word in ("text number", "other") for number in range(40)]
    assert_equal(cached.encode(texts), encoder.encode(texts))
    assert counting.seen == []
    cached.close()


def test_a_shortened_encoder_reads_less_and_keeps_what_it_reads_in_the_same_file(
    cached: CachedEncoder, encoder: Encoder
) -> None:
    long = "a heron stands in the water and waits " * 8
    whole, cut = (one.encode([long], tokens=False).pooled for one in (cached, cached.shortened(32)))
    exact = load_encoder("minilm", max_length=32).encode([long], tokens=False).pooled
    assert (cut @ exact.T).item() > 0.999  # the same but for the arithmetic of the backend
    assert (whole @ cut.T).item() < 0.995
    np.testing.assert_array_equal(cached.shortened(32).encode([long], tokens=False).pooled, cut)
    np.testing.assert_array_equal(cached.shortened(10_000).encode([long], tokens=False).pooled, whole)
