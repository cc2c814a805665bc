"""Tiny models with random weights, of every kind: as sentence-transformers, PyLate and Stanford's ColBERT save them.

A model has 32 components within, 24 of a token vector, and a vocabulary of letters and a few words.
"""

import json
import shutil
import string
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast

Form = Literal["native", "pylate", "stanford"]
FORMS: tuple[Form, ...] = ("native", "pylate", "stanford")

HIDDEN = 32
DIMS = 24
QUERY_LENGTH = 16
DOCUMENT_LENGTH = 40
POSITIONS = 64
_WORDS = "the cat dog drinks milk river bridge near hunts at night sleeps on sofa which and of paris france ##s ##ing"
_SPECIAL = ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = (*string.ascii_lowercase, *string.digits)
VOCABULARY = tuple(
    dict.fromkeys(
        (*_SPECIAL, "[Q]", "[D]", *string.punctuation, *_LETTERS, *(f"##{one}" for one in _LETTERS), *_WORDS.split())
    )
)

DOCUMENTS = (
    "The cat drinks milk.",
    "Dogs, cats and (other) animals: which hunts at night?",
    "vitamin",
    "...!",
    "Paris is the capital of France; the river is near the bridge.",
    "naïve café, ΑΒΓ and 東京",
    "The dog sleeps on the sofa. " * 8,
)
QUERIES = ("which cat drinks milk?", "dog", "the bridge near the river, at night, " * 4)


def tokenizer(words: tuple[str, ...] = VOCABULARY) -> PreTrainedTokenizerFast:
    """Return a word piece tokenizer of some words."""
    ids = {word: place for place, word in enumerate(words)}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    special = {name: f"[{name.upper()}]" for name in ("unk", "pad", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=POSITIONS,
        **{f"{name}_token": word for name, word in special.items()},
    )


def backbone(
    folder: Path, kind: type[PreTrainedModel] = BertModel, *, seed: int = 0, vocabulary: int = len(VOCABULARY)
) -> Path:
    """Save a transformer with its tokenizer and nothing else, and return its folder."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
    )
    config.num_labels = 1
    model: Any = kind(config)
    model.eval().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def late_model(form: Form, folder: Path, *, seed: int = 0, expands: bool = True, attends: bool = False) -> Path:
    """Save a late-interaction model in one of the three forms, and return its folder.

    Args:
        form: Whose.
        folder: Where; it must not exist.
        seed: Of the weights.
        expands: Whether queries are filled up with mask tokens.
        attends: Whether the other tokens attend to these.
    """
    if form == "native":
        return _native(folder, seed, expands=expands, attends=attends)
    backbone(folder, seed=seed)
    torch.manual_seed(seed + 1)
    projection = torch.randn(DIMS, HIDDEN)
    if form == "pylate":
        _as_pylate(folder, projection, expands=expands, attends=attends)
    else:
        assert expands, "Stanford's models always expand"
        _as_stanford(folder, projection, attends=attends)
    return folder


def _native(folder: Path, seed: int, *, expands: bool, attends: bool) -> Path:
    transformer = Transformer(
        str(backbone(folder.with_name(f"{folder.name}-backbone"), seed=seed)),
        query_length=None if expands else QUERY_LENGTH,
        query_expansion={"strategy": "fixed", "length": QUERY_LENGTH, "attend": attends} if expands else None,
        document_length=DOCUMENT_LENGTH,
    )
    torch.manual_seed(seed + 1)
    dense = Dense(
        HIDDEN, DIMS, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"
    )
    mask = MultiVectorMask(skiplist_words=list(string.punctuation))
    model = MultiVectorEncoder(
        modules=[transformer, dense, mask, Normalize("token_embeddings")],
        prompts={"query": "[Q] ", "document": "[D] "},
        device="cpu",
    )
    model.save_pretrained(str(folder))
    shutil.rmtree(folder.with_name(f"{folder.name}-backbone"))
    return folder


def _as_pylate(folder: Path, projection: torch.Tensor, *, expands: bool, attends: bool) -> None:
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": projection}, folder / "1_Dense/model.safetensors")
    describe(folder, "pylate", expands=expands, attends=attends)


def describe(folder: Path, form: Form, *, inner: int = HIDDEN, expands: bool = True, attends: bool = False) -> None:
    """Write the configuration of a model whose weights are in a folder, the projection's in `1_Dense`.

    Args:
        folder: The folder.
        form: ``native`` or ``pylate``.
        inner: Components of a token vector before the projection.
        expands: Whether queries are filled up with mask tokens.
        attends: Whether the other tokens attend to these.
    """
    _write(
        folder / "1_Dense/config.json",
        {
            "in_features": inner,
            "out_features": DIMS,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
            "module_input_name": "token_embeddings",
            "module_output_name": "token_embeddings",
        },
    )
    if form == "native":
        _describe_native(folder, expands=expands, attends=attends)
        return
    types = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    _write(
        folder / "modules.json",
        [
            {"idx": place, "name": str(place), "path": path, "type": reference}
            for place, (path, reference) in enumerate(types.items())
        ],
    )
    _write(folder / "sentence_bert_config.json", {"max_seq_length": DOCUMENT_LENGTH - 1, "do_lower_case": False})
    _write(
        folder / "config_sentence_transformers.json",
        {
            "__version__": {"sentence_transformers": "4.0.2"},
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "MaxSim",
            "query_prefix": "[Q] ",
            "document_prefix": "[D] ",
            "query_length": QUERY_LENGTH,
            "document_length": DOCUMENT_LENGTH,
            "attend_to_expansion_tokens": attends,
            "skiplist_words": list(string.punctuation),
            "do_query_expansion": expands,
            "model_type": "ColBERT",
        },
    )


def _describe_native(folder: Path, *, expands: bool, attends: bool) -> None:
    library = "sentence_transformers"
    types = {
        "": f"{library}.base.modules.transformer.Transformer",
        "1_Dense": f"{library}.base.modules.dense.Dense",
        "2_MultiVectorMask": f"{library}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
        "3_Normalize": f"{library}.base.modules.normalize.Normalize",
    }
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": types[path]} for place, path in enumerate(types)
    ]
    expansion = {"strategy": "fixed", "length": QUERY_LENGTH, "attend": attends}
    knobs = {"query_expansion": expansion} if expands else {"query_length": QUERY_LENGTH}
    contents: dict[str, Any] = {
        "modules.json": modules,
        "sentence_bert_config.json": {"document_length": DOCUMENT_LENGTH, **knobs},
        "2_MultiVectorMask/config.json": {"skiplist_words": list(string.punctuation)},
        "3_Normalize/config.json": {"module_input_name": "token_embeddings"},
        "config_sentence_transformers.json": {
            "model_type": "MultiVectorEncoder",
            "prompts": {"query": "[Q] ", "document": "[D] "},
        },
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        _write(folder / name, content)


def _as_stanford(folder: Path, projection: torch.Tensor, *, attends: bool) -> None:
    model: Any = BertModel.from_pretrained(folder)
    weights = {f"bert.{name}": value.contiguous() for name, value in model.state_dict().items()}
    save_file({**weights, "linear.weight": projection}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _write(folder / "config.json", {**config, "architectures": ["HF_ColBERT"]})
    _write(
        folder / "artifact.metadata",
        {
            "query_maxlen": QUERY_LENGTH,
            "doc_maxlen": DOCUMENT_LENGTH,
            "mask_punctuation": True,
            "attend_to_mask_tokens": attends,
            "query_token_id": "[unused0]",
            "doc_token_id": "[unused1]",
            "dim": DIMS,
            "similarity": "cosine",
        },
    )


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def library(folder: Path) -> MultiVectorEncoder:
    """Load a model by its own library."""
    return MultiVectorEncoder(
        str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32}
    ).eval()
