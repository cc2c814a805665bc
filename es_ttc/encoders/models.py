"""The models that have a short name: what is known of them before anything is loaded, in one table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from es_ttc.common.maven import Artifact, Pinned

Backend = Literal["torch", "onnx", "vllm"]


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model with a short name; prompts and pooling are those of its card."""

    short: str
    public: str
    revision: str
    dims: int
    max_length: int  # maximum number of tokens of one input
    licence: str
    extras: Mapping[Backend, str]  # the extra of es-ttc for each backend, the default one first
    # SHA-256 of each file that is read from packages; the mpnet folder is verified by its revision
    sha256: Mapping[str, str] = field(default_factory=dict)
    artifact: Pinned | None = None  # the file in a Maven repository, if it is not from packages
    pooling: Literal["mean", "cls"] = "mean"
    prompts: Mapping[str, str] = field(default_factory=dict)
    languages: tuple[str, ...] = ("English",)  # languages that it is trained for, as its card states; empty: many

    @property
    def default_backend(self) -> Backend:
        """The backend of a name that names none: the same on every machine, whatever is installed there."""
        return next(iter(self.extras))


def _langchain4j(name: str, sha256: str, size: int) -> Pinned:
    return Pinned(Artifact("dev.langchain4j", f"langchain4j-embeddings-{name}", "1.0.0-beta5"), sha256, size)


_E5_PROMPTS = {"query": "query: ", "document": "passage: "}

MODELS: Mapping[str, ModelDescription] = {
    model.short: model
    for model in (
        ModelDescription(
            short="minilm",
            public="all-MiniLM-L6-v2",
            revision="3bfb98ac8a7b",
            dims=384,
            max_length=256,
            licence="Apache-2.0",
            extras={"onnx": "minilm", "torch": "torch", "vllm": "minilm"},
            sha256={
                "model.onnx": "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            },
        ),
        ModelDescription(
            short="mpnet",
            public="all-mpnet-base-v2",
            revision="a4c0f1bfd769",
            dims=768,
            max_length=384,
            licence="Apache-2.0",
            extras={"torch": "mpnet", "vllm": "mpnet"},
        ),
        ModelDescription(
            short="colbert-small",
            public="answerai-colbert-small-v1",
            revision="4980983628c1",
            dims=384,
            max_length=512,
            licence="Apache-2.0",
            extras={"onnx": "cross-encoder"},
            sha256={
                "model.onnx": "4980983628c18e4f0a4c756114abd2d7c097c6ccad9cffc70e77302d21e05df0",
                "tokenizer.json": "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
            },
            prompts={"query": "[unused0]", "document": "[unused1]"},
        ),
        ModelDescription(
            short="bge-small",
            public="bge-small-en-v1.5",
            revision="e7f780efb6ce",
            dims=384,
            max_length=512,
            licence="MIT",
            extras={"onnx": "bge-small"},
            artifact=_langchain4j(
                "bge-small-en-v15", "ccee59079534ed109c40f092da1900ec780dc097ff55f4e99234783f2275adba", 77_768_641
            ),
            pooling="cls",
            prompts={"query": "Represent this sentence for searching relevant passages: "},
        ),
        ModelDescription(
            short="e5-small",
            public="e5-small-v2",
            revision="68079e79c89b",
            dims=384,
            max_length=512,
            licence="MIT",
            extras={"onnx": "e5-small"},
            artifact=_langchain4j(
                "e5-small-v2", "1ce3981dd5ccfd6102060a3862331d93923e021b6e23e27a6c168e366bc2b5dc", 78_761_373
            ),
            prompts=_E5_PROMPTS,
        ),
        ModelDescription(
            short="multilingual-e5-small",
            public="multilingual-e5-small",
            revision="1571fc982750",
            dims=384,
            max_length=512,
            licence="MIT",
            extras={"onnx": "multilingual"},
            sha256={"e5-small-q4.bin": "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"},
            prompts=_E5_PROMPTS,
            languages=(),
        ),
    )
}
"""By short name: encoders that need no model hub."""

SHORT_NAMES: tuple[str, ...] = tuple(MODELS)


def of_public_name(name: str) -> ModelDescription | None:
    """Return the model of a public name."""
    return next((model for model in MODELS.values() if model.public == name), None)


def named(name: str) -> ModelDescription | None:
    """Return the model of a short or public name; a folder of a public name is another model."""
    return MODELS.get(name) or (None if Path(name).is_dir() else of_public_name(name))
