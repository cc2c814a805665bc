"""Late-interaction models: the library's own vectors and scores, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_ttc.encoders import CachedEncoder, EncoderIdentity, load_encoder
from es_ttc.encoders.base import fix_for, name_in
from es_ttc.encoders.hashing import FileHashes, revision
from es_ttc.encoders.late_files import read_late
from es_ttc.errors import ConfigurationError
from tests.encoders.conftest import MakeFolder
from tests.support import late_models
from tests.support.late_models import DOCUMENTS, FORMS, QUERIES, Form, late_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[Form, Path]:
    folder = tmp_path_factory.mktemp("late")
    return {form: late_model(form, folder / form) for form in FORMS}


@pytest.fixture
def copied(models: dict[Form, Path], tmp_path: Path) -> Callable[[Form], Path]:
    """Return a copier of a form's model, to be changed."""

    def copy(form: Form) -> Path:
        return Path(shutil.copytree(models[form], tmp_path / form))

    return copy


def changed(folder: Path, name: str, **values: Any) -> Path:
    """Change values in a configuration file."""
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    (folder / name).write_text(json.dumps({**content, **values}), encoding="utf-8")
    return folder


def assert_the_librarys(folder: Path) -> None:
    """Compare token vectors and scores with the library's."""
    encoder = load_encoder(f"{folder}@torch:float32")
    library = late_models.library(folder)
    queries, documents = encoder.encode(QUERIES, role="query"), encoder.encode(DOCUMENTS)
    reference = library.encode_query(list(QUERIES), convert_to_numpy=True)
    for own, rows in zip(queries.tokens, reference, strict=True):
        np.testing.assert_allclose(own, rows, atol=1e-5)
    rows_of_documents = library.encode_document(list(DOCUMENTS), convert_to_numpy=True)
    for own, rows in zip(documents.tokens, rows_of_documents, strict=True):
        np.testing.assert_allclose(own, rows, atol=1e-5)
    sums = [[(query @ document.T).max(axis=1).sum() for document in documents.tokens] for query in queries.tokens]
    np.testing.assert_allclose(sums, library.similarity(reference, rows_of_documents).numpy(), atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_vectors_and_scores_are_the_librarys(form: Form, models: dict[Form, Path]) -> None:
    assert_the_librarys(models[form])


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("native", {"expands": False}),
        ("native", {"attends": True}),
        ("pylate", {"expands": False}),
        ("pylate", {"attends": True}),
        ("stanford", {"attends": True}),
    ],
)
def test_expansion_is_as_the_model_says(form: Form, options: dict[str, bool], tmp_path: Path) -> None:
    assert_the_librarys(late_model(form, tmp_path / "model", **options))


@pytest.mark.parametrize(
    "values",
    [
        {"query_expansion": {"strategy": "min", "length": 8, "attend": False, "token": "[SEP]"}},
        {"query_expansion": {"strategy": "min", "length": 8, "attend": True}, "query_length": 12},
        {"document_length": 12},
        {"document_length": None},
    ],
)
def test_lengths_are_as_the_model_says(copied: Callable[[Form], Path], values: dict[str, Any]) -> None:
    assert_the_librarys(changed(copied("native"), "sentence_bert_config.json", **values))


def test_the_skiplist_is_as_the_model_says(copied: Callable[[Form], Path]) -> None:
    folder = copied("native")
    for words, tasks in ((["the", "no such token", "[SEP]"], ["query", "document"]), ([], ["document"])):
        name = "2_MultiVectorMask/config.json"
        assert_the_librarys(changed(folder, name, skiplist_words=words, skiplist_tasks=tasks))


def test_offsets_are_those_of_the_kept_tokens(models: dict[Form, Path]) -> None:
    for form in FORMS:
        encoder = load_encoder(f"{models[form]}@torch:float32")
        texts = ["The cat, and (milk)!", "naïve café"]
        found = encoder.encode(texts)
        words = [texts[0][start:end] for start, end in found.offsets[0]]
        assert words == ["", "", "The", "cat", "and", "milk", ""]  # [CLS], marker, ..., [SEP]
        assert [len(rows) for rows in found.tokens] == [len(spans) for spans in found.offsets]
        query = encoder.encode([texts[0]], role="query")
        assert query.tokens[0].shape == (late_models.QUERY_LENGTH, late_models.DIMS)
        own = [texts[0][start:end] for start, end in query.offsets[0] if start < end]
        assert own == ["The", "cat", ",", "and", "(", "milk", ")", "!"]


def test_the_pooled_vector_is_the_mean_of_the_token_vectors(models: dict[Form, Path]) -> None:
    encoder = load_encoder(f"{models['native']}@torch:float32")
    for role in ("query", "document"):
        found = encoder.encode(DOCUMENTS, role=role)
        means = np.stack([rows.mean(axis=0) for rows in found.tokens])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        np.testing.assert_allclose(found.pooled, means, atol=1e-6)
        alone = encoder.encode(DOCUMENTS, role=role, tokens=False)
        assert np.array_equal(alone.pooled, found.pooled)
        assert alone.tokens == []


def test_long_texts_are_cut_and_say_so(models: dict[Form, Path]) -> None:
    encoder = load_encoder(f"{models['stanford']}@torch:float32")
    fits, long = "cat " * (late_models.DOCUMENT_LENGTH - 3), "cat " * (late_models.DOCUMENT_LENGTH - 2)
    found = encoder.encode([fits, long, "cat"])
    assert found.truncated.tolist() == [False, True, False]
    assert [len(rows) for rows in found.tokens] == [late_models.DOCUMENT_LENGTH] * 2 + [4]
    few = encoder.encode([fits, "cat"], max_tokens=5)
    assert few.truncated.tolist() == [True, False]
    assert [len(rows) for rows in few.tokens] == [5, 4]
    assert np.array_equal(few.pooled[0], found.pooled[0])
    shorter = encoder.shortened(10)
    assert shorter.identity.max_length == 10
    assert [len(rows) for rows in shorter.encode([long]).tokens] == [10]
    assert len(shorter.encode(["cat"], role="query").tokens[0]) == late_models.QUERY_LENGTH


def test_a_text_has_the_same_vectors_whatever_its_neighbours(models: dict[Form, Path], tmp_path: Path) -> None:
    encoder = load_encoder(f"{models['pylate']}@torch:float32")
    together = encoder.encode(DOCUMENTS)
    for place, text in enumerate(DOCUMENTS):
        assert np.array_equal(encoder.encode([text]).tokens[0], together.tokens[place])
    cached = CachedEncoder(encoder, tmp_path)
    for _ in range(2):
        again = cached.encode(DOCUMENTS)
        assert all(np.array_equal(one, other) for one, other in zip(again.tokens, together.tokens, strict=True))
    cached.close()


def test_texts_without_tokens_have_no_vectors(models: dict[Form, Path]) -> None:
    encoder = load_encoder(f"{models['native']}@torch:float32")
    for role in ("query", "document"):
        found = encoder.encode(["", "  "], role=role)
        assert not found.pooled.any()
        assert [rows.shape for rows in found.tokens] == [(0, late_models.DIMS)] * 2


def test_all_that_changes_vectors_changes_the_identity(copied: Callable[[Form], Path]) -> None:
    folder = copied("native")
    base = load_encoder(f"{folder}@torch:float32").identity
    assert (base.dims, base.max_length) == (late_models.DIMS, late_models.DOCUMENT_LENGTH)
    assert base.late_interaction
    assert EncoderIdentity.from_dict(base.as_dict()) == base
    assert name_in(base.key) == "native"
    assert base.variant(base.key) == base
    expansion = {"strategy": "fixed", "length": 16, "attend": False}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("sentence_bert_config.json", {"document_length": 30}),
        ("sentence_bert_config.json", {"query_expansion": None, "query_length": 16}),
        ("sentence_bert_config.json", {"query_expansion": {**expansion, "length": 12}}),
        ("sentence_bert_config.json", {"query_expansion": {**expansion, "attend": True}}),
        ("2_MultiVectorMask/config.json", {"skiplist_words": ["."]}),
        ("2_MultiVectorMask/config.json", {"skiplist_tasks": ["query", "document"]}),
        ("config_sentence_transformers.json", {"prompts": {"query": "[Q] ", "document": "[Q] "}}),
        ("1_Dense/config.json", {"activation_function": "torch.nn.modules.activation.Tanh"}),
    ]
    files = [read_late(folder).late]
    for name, values in changes:
        before = (folder / name).read_bytes()
        files.append(read_late(changed(folder, name, **values)).late)
        (folder / name).write_bytes(before)
    distinct = {(late.digest, late.document_length, *late.prompts.values()) for late in files}
    assert len(distinct) == len(changes) + 1


def test_changed_weights_are_another_model(models: dict[Form, Path], tmp_path: Path) -> None:
    for form in FORMS:
        other = late_model(form, tmp_path / form, seed=7)
        one, two = (load_encoder(f"{folder}@torch:float32").identity for folder in (models[form], other))
        assert one.model == two.model
        assert one.revision != two.revision
        assert fix_for(one.key, [two.key], "").startswith(f"[{form}] has changed since")


def test_a_backbone_may_be_stored_otherwise_than_its_projection(copied: Callable[[Form], Path]) -> None:
    import torch
    from safetensors.torch import load_file

    folder = copied("pylate")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert_the_librarys(folder)


def test_fix_for_names_changed_settings_and_not_other_models() -> None:
    one = EncoderIdentity("a", "0" * 12, 8, 40, "", "", "0" * 8)
    changed_settings = EncoderIdentity("a", "0" * 12, 8, 40, "", "", "1" * 8)
    assert fix_for(one.key, [changed_settings.key], "x").startswith("[a] has changed since")
    for other in (
        EncoderIdentity("b", "0" * 12, 8, 40, "", "", "0" * 8),
        EncoderIdentity("a", "0" * 12, 8, 40, "", f"law@{'2' * 12}", "0" * 8),
        EncoderIdentity("a", "0" * 12, 4, 40, "", "", "0" * 8),
    ):
        assert fix_for(one.key, [other.key], "x") == "x"
        assert name_in(other.key) == ("a+law" if other.adapter else other.model)


def test_changed_weights_of_the_backbone_are_seen_beside_a_projection_of_another_kind(
    copied: Callable[[Form], Path], hashes: FileHashes
) -> None:
    folder = copied("pylate")
    (folder / "model.safetensors").unlink()
    found = set()
    for name in ("model.onnx", "pytorch_model.bin"):
        for content in ("one", "two"):
            (folder / name).write_text(content, encoding="utf-8")
            found.add(revision(folder, hashes, projected=True))
    assert len(found) == 4


def minilm_as_late(make_folder: MakeFolder, form: Form) -> Path:
    """Return MiniLM, which exists for both backends, with a random projection."""
    from safetensors.numpy import save_file

    folder = make_folder("late")
    shutil.rmtree(folder / "1_Pooling")
    matrix = np.random.default_rng(5).normal(size=(late_models.DIMS, 384)).astype(np.float32)
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": matrix}, folder / "1_Dense" / "model.safetensors")
    late_models.describe(folder, form, inner=384)
    return folder


@pytest.mark.parametrize("form", ["native", "pylate"])
def test_onnx_is_the_same_encoder_without_torch(form: Form, make_folder: MakeFolder) -> None:
    folder = minilm_as_late(make_folder, form)
    onnx, torch = load_encoder(f"{folder}@onnx"), load_encoder(f"{folder}@torch:float32")
    assert onnx.identity.late == torch.identity.late
    assert onnx.distinguishes_roles
    assert torch.distinguishes_roles
    assert onnx.identity.key == torch.identity.key
    for role in ("query", "document"):
        one, two = onnx.encode(DOCUMENTS, role=role), torch.encode(DOCUMENTS, role=role)
        assert one.truncated.tolist() == two.truncated.tolist()
        for own, reference, spans, others in zip(one.tokens, two.tokens, one.offsets, two.offsets, strict=True):
            assert np.array_equal(spans, others)
            # int8 weights against float32
            assert np.sum(own * reference, axis=1).mean() > 0.97


def test_every_form_has_one_identity_by_its_files_and_by_its_library(models: dict[Form, Path], tmp_path: Path) -> None:
    from es_ttc.encoders.multi_vector import settings_of

    variants = {f"{form}-attends": late_model(form, tmp_path / f"{form}-attends", attends=True) for form in FORMS}
    variants |= {f"{form}-short": late_model(form, tmp_path / f"{form}-short", expands=False) for form in FORMS[:2]}
    for folder in (*models.values(), *variants.values()):
        library = late_models.library(folder)
        by_library, by_files = settings_of(library, source="x"), read_late(folder)
        assert by_files.late == by_library
        for text in ("[Q] [D] [unused0] The cat.", "[MASK] naïve"):
            ids = library.tokenizer.backend_tokenizer.encode(text).ids
            assert by_files.tokenizer.encode(text).ids[: len(ids)] == ids


def _more_tokens(folder: Path) -> None:
    late_models.tokenizer((*late_models.VOCABULARY, "further", "words")).save_pretrained(folder)


def _another_projection(folder: Path) -> None:
    changed(folder, "1_Dense/config.json", in_features=48)


def _other_width(folder: Path) -> None:
    from safetensors.torch import save_file
    from torch import ones

    changed(folder, "1_Dense/config.json", in_features=48)
    save_file({"linear.weight": ones(24, 48)}, folder / "1_Dense/model.safetensors")


def _without_normalisation(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    (folder / "modules.json").write_text(json.dumps(modules[:-1]), encoding="utf-8")


def _without_projection(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    (folder / "modules.json").write_text(json.dumps(modules[:1]), encoding="utf-8")


def _token_pooling(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    pooling = "sentence_transformers.multi_vector_encoder.modules.HierarchicalTokenPooling"
    modules.append({"idx": 4, "name": "4", "path": "4_Pooling", "type": pooling})
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "4_Pooling").mkdir()
    (folder / "4_Pooling/config.json").write_text("{}", encoding="utf-8")


def _long_documents(folder: Path) -> None:
    changed(folder, "sentence_bert_config.json", document_length=100)


def _unknown_strategy(folder: Path) -> None:
    changed(folder, "sentence_bert_config.json", query_expansion={"strategy": "some", "length": 3})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_more_tokens, r"embeddings of \d+ tokens and a tokenizer with token number \d+"),
        (_another_projection, "could not be loaded"),
        (_other_width, "components, and its projection takes 48"),
        (_without_normalisation, "does not normalise its token vectors"),
        (_without_projection, "has no projection"),
        (_token_pooling, "what is served is Transformer, Dense, MultiVectorMask and Normalize"),
        (_long_documents, r"reads documents of 100 tokens and has 64 positions"),
        (_unknown_strategy, "could not be loaded: .*strategy"),
    ],
)
def test_a_late_model_with_unsupported_configuration_is_refused(
    spoil: Callable[[Path], None], message: str, copied: Callable[[Form], Path]
) -> None:
    folder = copied("native")
    spoil(folder)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_encoder(f"{folder}@torch:float32")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_projection_is_never_made_up(copied: Callable[[Form], Path]) -> None:
    folder = changed(copied("stanford"), "config.json", architectures=["BertModel"])
    with pytest.raises(ConfigurationError, match=r'set "architectures" to \["HF_ColBERT"\]'):
        load_encoder(f"{folder}@torch")


def test_weights_of_another_backbone_are_never_made_up(copied: Callable[[Form], Path]) -> None:
    from safetensors.torch import load_file, save_file

    folder = copied("stanford")
    weights = {
        name.replace("bert.", "other."): value for name, value in load_file(folder / "model.safetensors").items()
    }
    renamed = {name.replace("layer.", "block."): value for name, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"\d of the 39 parts"):
        load_encoder(f"{folder}@torch")


def test_late_encoder_options_cut_vectors_and_are_checked(models: dict[Form, Path]) -> None:
    name = f"{models['native']}@torch:float32"
    cut = load_encoder(name, dims=8, max_length=20)
    assert cut.identity.key.startswith(f"native@{cut.identity.revision}/8x20+")
    rows = cut.encode(["the cat"]).tokens[0]
    whole = load_encoder(name).encode(["the cat"]).tokens[0][:, :8]
    np.testing.assert_allclose(rows, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-6)
    with pytest.raises(ConfigurationError, match=r"dims \[25\]"):
        load_encoder(name, dims=25)
    with pytest.raises(ConfigurationError, match="take no adapters"):
        load_encoder(f"{models['native']}@torch", adapter="./x")
