"""The untrained late-interaction model: a backbone with a projection of its token vectors to fewer components.

The projection begins as the principal directions of token vectors of some documents, not at random: of all projections
to so many components it changes their inner products least (Eckart and Young, 1936). With as many components as the
backbone has, it changes none, so the untrained model is the backbone's own late interaction.
"""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import Tensor, nn

from es_ttc.encoders import trained
from es_ttc.encoders.base import Role
from es_ttc.encoders.kind import Kind, kind_of
from es_ttc.encoders.multi_vector import settings_of
from es_ttc.encoders.named import named
from es_ttc.encoders.registry import model_folder
from es_ttc.encoders.sentence_transformers import DEFAULT_MAX_LENGTH, load_model, no_progress_bars
from es_ttc.encoders.windows import role_prompts
from es_ttc.errors import ConfigurationError
from es_ttc.lab.training.options import LateShape

_TOKENS = "token_embeddings"
_AT_ONCE = 32


def backbone_folder(name: str, cache_dir: Path) -> Path:
    """Return the folder of a backbone: an encoder's name, or a folder of a dense encoder or of a transformer alone."""
    folder = Path(name).expanduser()
    encoder = named(name)
    if not folder.is_dir() and encoder is not None and "torch" not in encoder.extras:
        raise ConfigurationError(
            f"backbone [{name}] has an ONNX model only, which cannot be fine-tuned: name minilm, mpnet or a "
            "folder with weights for torch"
        )
    if not folder.is_dir():
        return model_folder(name, cache_dir=cache_dir)
    if trained.is_trained(folder):
        raise ConfigurationError(f"backbone [{name}] holds networks over an encoder's vectors: name that encoder")
    found = kind_of(folder)
    plain = found.kind is Kind.NO_RETRIEVAL and (folder / "config.json").is_file()
    if found.kind is not Kind.DENSE and not plain:
        article = "" if found.kind is Kind.NO_RETRIEVAL else "a "
        raise ConfigurationError(
            f"backbone [{name}] is {article}{found.kind} ({found.evidence}): name a dense encoder, or a folder with a "
            "transformer's config.json, weights and tokenizer.json"
        )
    return folder


def build(folder: Path, shape: LateShape, texts: Sequence[str]) -> MultiVectorEncoder:
    """Return the untrained model, on the processor.

    Markers of the role and query expansion are left out: a few hundred judged queries do not teach a model what new
    tokens mean. Prompts that the backbone was trained with stay. Punctuation in documents gets no vectors, as in
    ColBERT.
    """
    transformer, prompts = _transformer(folder)
    width = int(transformer.get_embedding_dimension())
    _require_fitting(transformer, shape, width)
    limit = transformer.max_seq_length or DEFAULT_MAX_LENGTH
    transformer.query_length = shape.query_length
    transformer.document_length = shape.document_length or min(limit, DEFAULT_MAX_LENGTH)
    transformer.query_expansion = None
    dense = Dense(width, shape.dimensions, bias=False, activation_function=nn.Identity(), module_input_name=_TOKENS)
    mask = MultiVectorMask(skiplist_words=list(string.punctuation))
    modules = [transformer, dense, mask, Normalize(_TOKENS)]
    with no_progress_bars():
        model = MultiVectorEncoder(
            modules=modules, prompts={str(role): text for role, text in prompts.items()}, device="cpu"
        ).eval()
    settings_of(model, source=str(folder))
    with torch.no_grad():
        dense.linear.weight.copy_(principal_directions(_token_vectors(model, texts), shape.dimensions))
    return model


def principal_directions(rows: Tensor, count: int) -> Tensor:
    """Return the directions in which rows ``(n, d)`` are longest, ``(count, d)`` orthonormal.

    They are eigenvectors of the second moment; fewer rows than `count` are completed by directions of no length.
    """
    moment = rows.double().T @ rows.double()
    _, vectors = torch.linalg.eigh(moment)
    found: Tensor = vectors.flip(1)[:, :count].T.float()
    return found


def train_last_layers(model: MultiVectorEncoder, count: int | None) -> None:
    """Freeze all of a backbone but its last layers; None trains all of it."""
    if count is None:
        return
    transformer: Any = model[0]
    backbone = transformer.auto_model
    depth = backbone.config.num_hidden_layers
    stacks = [one for one in backbone.modules() if isinstance(one, nn.ModuleList) and len(one) == depth]
    if not stacks or count > depth:
        raise ConfigurationError(f"[--layers] is {count} and the backbone has {depth}: leave it out to train all of it")
    backbone.requires_grad_(False)
    stacks[0][depth - count :].requires_grad_(True)


def _transformer(folder: Path) -> tuple[Any, Mapping[Role, str]]:
    """Return a backbone's transformer and the prompts that it was trained with."""
    if kind_of(folder).kind is Kind.DENSE:
        model = load_model(folder, torch.device("cpu"))
        transformer: Any = model[0]
        prompts = role_prompts(model.prompts, model.default_prompt_name)
    else:
        transformer, prompts = _plain(folder), {"query": "", "document": ""}
    if not isinstance(transformer, Transformer) or not getattr(transformer.tokenizer, "is_fast", False):
        raise ConfigurationError(f"backbone [{folder}] is no transformer with a fast tokenizer (tokenizer.json)")
    return transformer, prompts


def _plain(folder: Path) -> Any:
    if not (folder / "tokenizer.json").is_file():
        raise ConfigurationError(f"backbone [{folder}] has no tokenizer.json, which character offsets need")
    try:
        with no_progress_bars():
            return Transformer(
                str(folder), model_kwargs={"local_files_only": True, "dtype": torch.float32},
                processor_kwargs={"local_files_only": True}, config_kwargs={"local_files_only": True},
            )  # fmt: skip
    except Exception as error:  # the library may raise any exception for a model's files
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"backbone [{folder}] could not be loaded: {reason}") from error


def _require_fitting(transformer: Any, shape: LateShape, width: int) -> None:
    if shape.dimensions > width:
        raise ConfigurationError(
            f"[--dimensions] is {shape.dimensions} and the backbone's token vectors have {width} components: give at "
            f"most {width}"
        )
    positions = int(getattr(transformer.config, "max_position_embeddings", 0) or 0)
    for option, length in (("--query-length", shape.query_length), ("--document-length", shape.document_length or 0)):
        if positions and length > positions:
            raise ConfigurationError(
                f"[{option}] is {length} and the backbone has {positions} positions: give at most {positions}"
            )


@torch.no_grad()
def _token_vectors(model: MultiVectorEncoder, texts: Sequence[str]) -> Tensor:
    """Return a backbone's own token vectors of texts, unit rows, without those that are left out."""
    transformer: Any = model[0]
    mask: Any = model[2]
    rows = []
    for at in range(0, len(texts), _AT_ONCE):
        features = model.preprocess(
            list(texts[at : at + _AT_ONCE]), prompt=model.prompts.get("document") or None, task="document"
        )
        found = mask(transformer(features), task="document")
        rows.append(found[_TOKENS][found["attention_mask"].bool()])
    return nn.functional.normalize(torch.cat(rows), dim=1)
