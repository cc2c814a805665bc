"""Fetching, from a repository of the test's own: what is right, wrong, missing, or wanted twice at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
import stamina

from es_ttc.common import maven
from es_ttc.common.maven import Artifact, Pinned
from es_ttc.engine.node import parts
from es_ttc.errors import NodeError
from tests.support.maven import Repository, serving

CONTENT = {
    Artifact("org.example", name, "1.0", kind): name.encode() * 50_000
    for name, kind in (("alpha", "jar"), ("beta", "jar"), ("gamma", "zip"))
}
PINS = [Pinned(artifact, sha256(content).hexdigest(), len(content)) for artifact, content in CONTENT.items()]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    served = Repository(tmp_path / "repository", CONTENT)
    with serving(served) as url:
        monkeypatch.setattr(maven, "repositories", lambda: {"test": url})
        with stamina.set_testing(True, attempts=2):
            yield served


def contents(paths: dict[Artifact, Path]) -> dict[Artifact, bytes]:
    return {artifact: path.read_bytes() for artifact, path in paths.items()}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()} - {"fetch.lock"}


def test_everything_is_fetched_once_and_counted(repository: Repository, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    cache = tmp_path / "cache"
    assert contents(maven.fetch(PINS, cache, lambda *progress: seen.append(progress))) == CONTENT
    assert contents(maven.fetch(PINS, cache)) == CONTENT
    assert sorted(repository.asked) == sorted(artifact.filename for artifact in CONTENT)
    size = sum(map(len, CONTENT.values()))
    assert seen[-1] == (size, size, "3 of 3 files")
    assert all(before[0] <= after[0] for before, after in pairwise(seen))
    assert files(cache) == {artifact.filename for artifact in CONTENT}


def test_an_artifact_with_another_checksum_never_reaches_the_cache(repository: Repository, tmp_path: Path) -> None:
    repository.path(PINS[1].artifact).write_bytes(b"something else")
    with pytest.raises(NodeError, match=r"could not fetch org\.example:beta:1\.0:jar: its SHA-256 is"):
        maven.fetch(PINS, tmp_path / "cache")
    assert PINS[1].artifact.filename not in files(tmp_path / "cache")
    assert repository.asked.count(PINS[1].artifact.filename) == 2


def test_a_missing_file_is_named_and_the_rest_is_kept(repository: Repository, tmp_path: Path) -> None:
    path = repository.path(PINS[2].artifact)
    path.rename(path.with_suffix(".away"))
    with pytest.raises(NodeError, match=r"could not fetch org\.example:gamma:1\.0:zip"):
        maven.fetch(PINS, tmp_path / "cache")
    path.with_suffix(".away").rename(path)
    repository.asked.clear()
    assert contents(maven.fetch(PINS, tmp_path / "cache")) == CONTENT
    assert path.name in repository.asked


def test_fetching_at_the_same_time_fetches_once(repository: Repository, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: contents(maven.fetch(PINS, tmp_path / "cache")), range(4)))
    assert results == [CONTENT] * 4
    assert sorted(repository.asked) == sorted(artifact.filename for artifact in CONTENT)


@pytest.mark.parametrize("version", parts.VERSIONS)
def test_the_lock_pins_exactly_what_the_node_is_made_of(version: str) -> None:
    lock = parts.read_lock(version)
    made_of = parts.read_parts(version)
    assert made_of.version == version
    assert sorted(lock) == made_of.artifacts
    assert all(len(pin.sha256) == 64 and pin.size > 0 for pin in lock.values())
