"""Kinds of models: tiny ones, saved by their own libraries, are found out before anything is loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders import load_encoder
from es_ttc.encoders.kind import ModelKind, kind_of, require_served
from es_ttc.encoders.registry import model_folder
from es_ttc.errors import ConfigurationError
from tests.support import late_models
from tests.support.late_models import FORMS, backbone, late_model, tokenizer

pytestmark = pytest.mark.slow

Make = Callable[[Path], Path]


def dense(folder: Path) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    source = backbone(folder.with_name("backbone"))
    SentenceTransformer(modules=[Transformer(str(source)), Pooling(late_models.HIDDEN)], device="cpu").save(str(folder))
    return folder


def sparse(folder: Path) -> Path:
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling
    from transformers import BertForMaskedLM

    source = backbone(folder.with_name("backbone"), BertForMaskedLM)
    mlm = Transformer(str(source), transformer_task="fill-mask")
    SparseEncoder(modules=[mlm, SpladePooling()], device="cpu").save(str(folder))
    return folder


def cross_encoder(folder: Path) -> Path:
    from sentence_transformers import CrossEncoder
    from transformers import BertForSequenceClassification

    source = backbone(folder.with_name("backbone"), BertForSequenceClassification)
    CrossEncoder(str(source), device="cpu").save_pretrained(str(folder))
    return folder


def classifier(folder: Path) -> Path:
    from transformers import BertForSequenceClassification

    return backbone(folder, BertForSequenceClassification)


def static(folder: Path) -> Path:
    import numpy as np
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    words = tokenizer()
    weights = np.ones((len(words), 8), np.float32)
    module = StaticEmbedding(words.backend_tokenizer, embedding_weights=weights)
    SentenceTransformer(modules=[module], device="cpu").save(str(folder))
    return folder


def masked_language_model(folder: Path) -> Path:
    from transformers import BertForMaskedLM

    return backbone(folder, BertForMaskedLM)


REFUSED: list[tuple[Make, ModelKind, str]] = [
    (sparse, ModelKind.SPARSE, "sparse_vector"),
    (cross_encoder, ModelKind.CROSS_ENCODER, r"kind \[cross_encoder\]"),
    (classifier, ModelKind.CROSS_ENCODER, r"kind \[cross_encoder\]"),
    (static, ModelKind.STATIC, "each of its words has one vector"),
    (masked_language_model, ModelKind.NO_RETRIEVAL, r"\['BertForMaskedLM'\]"),
    (backbone, ModelKind.NO_RETRIEVAL, r"\['BertModel'\].*modules\.json"),
]


@pytest.mark.parametrize(("make", "kind", "instead"), REFUSED, ids=lambda value: getattr(value, "__name__", None))
def test_models_that_are_not_served_are_refused_on_every_backend(
    make: Make, kind: ModelKind, instead: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "model")
    assert kind_of(folder).kind is kind
    for backend in ("torch", "onnx", "vllm"):
        with pytest.raises(ConfigurationError, match=instead) as caught:
            load_encoder(f"{folder}@{backend}")
        message = str(caught.value)
        assert f"encoder [{folder}] is " in message
        assert kind.value in message
        assert "\n" not in message
    with pytest.raises(ConfigurationError, match=instead):
        model_folder(str(folder))


def test_a_dense_encoder_is_served(tmp_path: Path) -> None:
    folder = dense(tmp_path / "model")
    assert kind_of(folder).kind is ModelKind.DENSE
    found = load_encoder(f"{folder}@torch:float32")
    assert not found.identity.late_interaction
    assert "late" not in found.identity.as_dict()
    assert found.encode(["the cat"]).pooled.shape == (1, late_models.HIDDEN)


@pytest.mark.parametrize("form", FORMS)
def test_late_interaction_models_of_every_form(form: late_models.Form, tmp_path: Path) -> None:
    folder = late_model(form, tmp_path / "model")
    assert kind_of(folder).kind is ModelKind.LATE_INTERACTION
    with pytest.raises(ConfigurationError, match=r"late-interaction.*vLLM.*@torch"):
        load_encoder(f"{folder}@vllm")
    with pytest.raises(ConfigurationError, match="dense encoder"):
        model_folder(str(folder))


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"artifact.metadata": {}}, ModelKind.LATE_INTERACTION),
        ({"config.json": {"architectures": ["HF_ColBERT"]}}, ModelKind.LATE_INTERACTION),
        ({"config.json": {"architectures": ["ColPaliForRetrieval"]}}, ModelKind.LATE_INTERACTION),
        ({"config_sentence_transformers.json": {"model_type": "ColBERT"}}, ModelKind.LATE_INTERACTION),
        ({"modules.json": [{"type": "pylate.models.Dense.Dense", "path": ""}]}, ModelKind.LATE_INTERACTION),
        ({"modules.json": [{"type": "sentence_transformers.models.Transformer", "path": ""}]}, ModelKind.DENSE),
        ({"modules.json": [{"type": "sentence_transformers.models.BoW", "path": ""}]}, ModelKind.STATIC),
        (
            {
                "modules.json": [{"type": "sentence_transformers.base.modules.router.Router", "path": ""}],
                "router_config.json": {
                    "types": {"query_0_SpladePooling": "sentence_transformers.sparse_encoder.modules.X"}
                },
            },
            ModelKind.SPARSE,
        ),
        ({"config.json": {"model_type": "model2vec", "architectures": ["StaticModel"]}}, ModelKind.STATIC),
        ({"config.json": {"architectures": ["LlamaForCausalLM"]}}, ModelKind.NO_RETRIEVAL),
        ({"config.json": {"architectures": None}}, ModelKind.NO_RETRIEVAL),
        ({}, ModelKind.NO_RETRIEVAL),
    ],
)
def test_kinds_by_their_files(files: dict[str, Any], kind: ModelKind, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    assert kind_of(tmp_path).kind is kind


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "is not valid JSON"),
        pytest.param("config.json", "[" * 10_000, "is not valid JSON", id="too deep"),
        ("config.json", "[]", "is no JSON object"),
        ("config_sentence_transformers.json", '"x"', "is no JSON object"),
        ("modules.json", "{}", "is no list of modules"),
        ("modules.json", '[{"type": 3, "path": ""}]', "is no list of modules"),
    ],
)
def test_damaged_files_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message) as caught:
        require_served("x", tmp_path)
    assert name in str(caught.value)
