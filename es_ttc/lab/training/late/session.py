"""One training from a BEIR folder to a late-interaction model's folder, as `es-ttc train late` runs it.

The untrained model is a backbone with a projection of its token vectors to fewer components. The projection begins as
the principal directions of token vectors of some documents, not at random: of all projections to so many components it
changes their inner products least (Eckart and Young, 1936). With as many components as the backbone has, it changes
none, so the untrained model is the backbone's own late interaction.
"""

import shutil
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import Tensor, nn

from es_ttc.encoders import trained
from es_ttc.encoders.base import Role
from es_ttc.encoders.hashing import FileHashes, revision
from es_ttc.encoders.kind import ModelKind, kind_of
from es_ttc.encoders.models import named
from es_ttc.encoders.multi_vector import settings_of
from es_ttc.encoders.registry import load_encoder, model_folder
from es_ttc.encoders.sentence_transformers import DEFAULT_MAX_LENGTH, load_model, no_progress_bars
from es_ttc.encoders.windows import role_prompts
from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation import provenance
from es_ttc.lab.evaluation.metrics import check_metric
from es_ttc.lab.evaluation.rankings import ReportStage, silent
from es_ttc.lab.evaluation.report import rendered, require_writable
from es_ttc.lab.training.artefact import MODEL_CARD, PACKAGES, claim, lasting
from es_ttc.lab.training.late.recipe import LateRecipe, LateTask, load_late_task
from es_ttc.lab.training.loop import RESUMABLE_OPTIONS, ReportTraining, TrainingProgress, train
from es_ttc.lab.training.options import LateOptions, LateShape, LoopOptions

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
    plain = found.kind is ModelKind.NO_RETRIEVAL and (folder / "config.json").is_file()
    if found.kind is not ModelKind.DENSE and not plain:
        article = "" if found.kind is ModelKind.NO_RETRIEVAL else "a "
        raise ConfigurationError(
            f"backbone [{name}] is {article}{found.kind} ({found.evidence}): name a dense encoder, or a folder with a "
            "transformer's config.json, weights and tokenizer.json"
        )
    return folder


def build_model(folder: Path, shape: LateShape, texts: Sequence[str]) -> MultiVectorEncoder:
    """Return the untrained model, on the processor, with the prompts of the backbone.

    It has no role markers and no query expansion: a few hundred queries do not teach a model what new tokens mean.
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
    """Return the directions in which rows ``(n, d)`` are longest, ``(count, d)`` orthonormal: of the second moment."""
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
    stacks = [module for module in backbone.modules() if isinstance(module, nn.ModuleList) and len(module) == depth]
    if not stacks or count > depth:
        raise ConfigurationError(f"[--layers] is {count} and the backbone has {depth}: leave it out to train all of it")
    backbone.requires_grad_(False)
    stacks[0][depth - count :].requires_grad_(True)


def _transformer(folder: Path) -> tuple[Any, Mapping[Role, str]]:
    """Return a backbone's transformer and the prompts that it was trained with."""
    if kind_of(folder).kind is ModelKind.DENSE:
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


RECORD = "training.json"  # settings and course; `card.json` would say that the folder holds heads
_SAMPLED = 128  # documents whose token vectors give the first projection


@dataclass(frozen=True, slots=True)
class LateRequest:
    """A request for a training."""

    data: Path
    backbone: str
    out: Path
    options: LateOptions
    loop: LoopOptions
    resume: bool = False


@dataclass(frozen=True, slots=True)
class LateResult:
    """The result of a training."""

    encoder: str
    course: TrainingProgress


def run_late_training(
    request: LateRequest, *, cache_dir: Path, progress: ReportStage = silent, report: ReportTraining = lambda *_: None
) -> LateResult:
    """Train and write the trained encoder."""
    options, loop = request.options, request.loop
    check_metric(options.metric)
    checkpoint = checkpoint_of(request.out)
    claim(request.out, RECORD, checkpoint, resume=request.resume)
    require_writable(file=request.out)
    folder = backbone_folder(request.backbone, cache_dir)
    task = load_late_task(
        request.data, seed=loop.seed, most_queries=options.queries, pool=options.pool, progress=progress
    )
    about = {
        "kind": "late",
        "backbone": lasting(request.backbone),
        "data": request.data.resolve().name,
        "options": asdict(options),
        "loop": {name: value for name, value in asdict(loop).items() if name not in RESUMABLE_OPTIONS},
        "revision": revision(folder, FileHashes(cache_dir)),
        "digest": task.digest,
    }
    torch.manual_seed(loop.seed)
    model = build_model(folder, options.shape, _sample(task, loop.seed))
    train_last_layers(model, options.layers)
    recipe = LateRecipe(task, model, options, progress)
    course = train(recipe, loop, file=checkpoint, about=about, resume=request.resume, report=report)
    _write(request.out, model, _record(task, about, course))
    checkpoint.unlink(missing_ok=True)
    return LateResult(load_encoder(str(request.out), cache_dir=cache_dir).identity.key, course)


def checkpoint_of(out: Path) -> Path:
    """Return the checkpoint's file: beside the folder, which appears only when it is whole."""
    return out.with_name(f"{out.name}.checkpoint.safetensors")


def _sample(task: LateTask, seed: int) -> list[str]:
    count = min(_SAMPLED, len(task.documents))
    drawn = np.random.default_rng(seed).choice(len(task.documents), count, replace=False)
    return [task.documents[place] for place in np.sort(drawn)]


def _record(task: LateTask, about: Mapping[str, Any], course: TrainingProgress) -> dict[str, Any]:
    return {
        **about,
        "documents": len(task.documents),
        "train_queries": len(task.train),
        "valid_queries": len(task.valid),
        "valid": "train, a seeded part held out" if task.held_out else "valid",
        "course": course.course(),
        "versions": provenance.versions(PACKAGES),
        "machine": provenance.machine(),
        "date": provenance.timestamp(),
    }


def _write(out: Path, model: MultiVectorEncoder, record: Mapping[str, Any]) -> None:
    """Write the folder under another name, and rename it when it is whole."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        with no_progress_bars():
            model.cpu().eval().save_pretrained(str(partial), create_model_card=False, safe_serialization=True)
        page = rendered("late.md.j2", **record, folder=out, file=RECORD)
        (partial / MODEL_CARD).write_text(f"{page}\n", encoding="utf-8")
        (partial / RECORD).write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2) + b"\n")
        if out.is_dir():
            out.rmdir()
        partial.rename(out)
    except OSError as error:
        raise ConfigurationError(f"[{out}] cannot be written: {error.strerror}") from error
