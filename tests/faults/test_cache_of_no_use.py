import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from es_ttc.cli.app import run
from es_ttc.encoders import CachedEncoder, cache
from es_ttc.encoders.base import Encoder

TEXTS = ["a heron stands in the water", "a kettle boils"]
NOBODY = 65534


def test_a_locked_cache_is_left_as_it_is(
    tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = CachedEncoder(encoder, tmp_path)
    first.encode(TEXTS)
    first.close()
    [file] = tmp_path.glob("*.sqlite")
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(cache, "_BUSY_SECONDS", 0.2)
    second = CachedEncoder(encoder, tmp_path)
    np.testing.assert_array_equal(second.encode(TEXTS).pooled, encoder.encode(TEXTS).pooled)
    second.close()
    assert caplog.text.count("cannot be used (database is locked): texts are encoded without it") == 1
    holder.execute("ROLLBACK")
    assert holder.execute("SELECT COUNT(*) FROM entries").fetchone() == (len(TEXTS),)
    holder.close()


def test_a_cache_that_is_locked_while_it_is_open_is_left_as_it_is(
    tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "_BUSY_SECONDS", 0.2)
    cached = CachedEncoder(encoder, tmp_path)
    cached.encode(TEXTS[:1])
    [file] = tmp_path.glob("*.sqlite")
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        np.testing.assert_array_equal(cached.encode(TEXTS).pooled, encoder.encode(TEXTS).pooled)
    holder.execute("ROLLBACK")
    assert holder.execute("SELECT COUNT(*) FROM entries").fetchone() == (1,)
    assert caplog.text.count("texts are encoded without it") == 1
    holder.close()
    cached.close()


def _file_in_the_way(folder: Path) -> Path:
    (folder / "encodings").write_text("somebody's")
    return folder


def _folder_in_the_way(folder: Path) -> Path:
    (folder / "encodings" / cache._FILE).mkdir(parents=True)
    return folder


def _no_folder_can_be_made(_folder: Path) -> Path:
    return Path("/proc/self")


@pytest.mark.parametrize("spoil", [_file_in_the_way, _folder_in_the_way, _no_folder_can_be_made])
def test_an_evaluation_goes_on_without_a_cache(
    tmp_path: Path,
    collection: Path,
    spoil: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("ES_TTC_CACHE_DIR", str(spoil(tmp_path / "cache")))
    monkeypatch.setenv("ES_TTC_ENCODER", "minilm@onnx")
    arguments = ["evaluate", str(collection), "--methods", "dense", "--engine", "memory", "--json"]
    assert run(arguments) == 0, capsys.readouterr().err
    assert caplog.text.count("texts are encoded without it") == 1


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder on whose way every user may go."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_cache_that_may_only_be_read_is_left_as_it_is(open_folder: Path, encoder: Encoder) -> None:
    folder = open_folder / "encodings"
    first = CachedEncoder(encoder, folder)
    first.encode(TEXTS)
    first.close()
    [file] = folder.glob("*.sqlite")
    before = file.read_bytes()
    file.chmod(0o444)
    folder.chmod(0o555)
    child = os.fork()
    if child == 0:  # root may write everywhere
        status = 1
        try:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            store = cache.EncodingStore(file, max_bytes=1 << 20)
            status = 0 if store.get({b"x" * 16}) == {} else 2
            store.put({})
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    folder.chmod(0o755)
    assert file.read_bytes() == before
