"""One training from BEIR folders to a trained encoder, as `es-ttc train` runs it."""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from es_ttc.encoders.base import Encoder, EncoderIdentity, Role
from es_ttc.encoders.cache import cached
from es_ttc.encoders.hashing import FileHashes
from es_ttc.encoders.heads import Head
from es_ttc.encoders.registry import load_encoder, model_folder
from es_ttc.encoders.trained import CARD, ROLES, ModelCard, TrainedEncoder, heads_in, is_trained, trained_identity
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.lab.evaluation.rankings import ReportStage, silent
from es_ttc.lab.training import artefact
from es_ttc.lab.training.data import TrainingTask, load_task
from es_ttc.lab.training.loop import RESUMABLE_OPTIONS, ReportTraining, TrainingProgress, train
from es_ttc.lab.training.measures import before_and_after
from es_ttc.lab.training.options import ColtOptions, DenseOptions, HeadOptions, LoopOptions, NnnOptions
from es_ttc.lab.training.recipes.colt import ColtRecipe
from es_ttc.lab.training.recipes.dense import DenseRecipe
from es_ttc.lab.training.recipes.head import HeadRecipe
from es_ttc.lab.training.recipes.nnn import NnnRecipe, choose_penalty
from es_ttc.lab.training.sides import DOCUMENTS, TRAIN, VALID, Trainable, TunedSide


@dataclass(frozen=True)
class TrainingStart:
    """The initial state: heads and folders of fine-tuned models by role, the initial encoder's identity."""

    heads: Mapping[Role, Head]
    models: Mapping[Role, Path] = field(default_factory=dict)
    identity: str | None = None


Sides = Callable[[TrainingTask, Role], TunedSide]  # creates a side with a fine-tuned encoder


Options = DenseOptions | NnnOptions | ColtOptions | HeadOptions


@dataclass(frozen=True)
class TrainingRequest:
    """A request for a training."""

    kind: str
    data: Sequence[Path]
    out: Path
    options: Options
    loop: LoopOptions
    start: Path | None = None
    most_queries: int | None = None
    resume: bool = False
    choose_penalty: bool = False

    def recorded_options(self) -> dict[str, Any]:
        """Return the options for checkpoints and cards."""
        chosen = {"l1": "chosen", "l2": "chosen"} if self.choose_penalty else {}
        return asdict(self.options) | (chosen if isinstance(self.options, NnnOptions) else {})

    def recipe(self, tasks: Sequence[TrainingTask], side: Sides) -> Trainable:
        """Return the recipe of the options."""
        task, options = tasks[0], self.options
        match options:
            case DenseOptions():
                tuned = options.tune == "encoder"
                sides = {"queries": side(task, "query"), "documents": side(task, "document")} if tuned else {}
                return DenseRecipe(task, options, **sides)
            case NnnOptions():
                if self.choose_penalty:
                    l1, l2 = choose_penalty(task, options.metric)
                    options = replace(options, l1=l1, l2=l2)
                return NnnRecipe(task, options, queries=side(task, "query") if options.tune == "encoder" else None)
            case ColtOptions():
                return ColtRecipe(task, options)
            case HeadOptions():
                return HeadRecipe(tasks, options)


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training."""

    identity: EncoderIdentity
    course: TrainingProgress
    metrics: Mapping[str, Mapping[str, float]]
    params: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def run_training(
    request: TrainingRequest,
    base_name: str,
    encoder: Encoder,
    *,
    cache_dir: Path,
    progress: ReportStage = silent,
    report: ReportTraining = lambda *_: None,
) -> TrainingResult:
    """Train and write the trained encoder."""
    checkpoint = request.out / artefact.CHECKPOINT_FILE
    artefact.claim(request.out, CARD, checkpoint, resume=request.resume)
    loop = request.loop
    start = _start(request.start, encoder.identity, cache_dir)

    def load(models: Mapping[Role, Path]) -> list[TrainingTask]:
        below, most = _below(encoder, models, cache_dir), request.most_queries
        return [load_task(one, below, seed=loop.seed, most_queries=most, progress=progress) for one in request.data]

    tasks = load(start.models)
    before = start.heads
    about = {
        "kind": request.kind,
        "encoder": encoder.identity.key,
        "start": start.identity,
        "data": {task.name: _digest(task) for task in tasks},
        "options": request.recorded_options(),
        "loop": {name: value for name, value in asdict(loop).items() if name not in RESUMABLE_OPTIONS},
    }
    torch.manual_seed(loop.seed)

    def side(task: TrainingTask, role: Role) -> TunedSide:
        if before[role].layers:
            raise InvalidRequest(
                f"[{request.start}] has an adapter for the role [{role}]: begin from one that was trained with --tune "
                "encoder, or from none"
            )
        folder = start.models.get(role) or model_folder(base_name, cache_dir=cache_dir)
        texts = {DOCUMENTS: task.texts} if role == "document" else {TRAIN: task.train.texts, VALID: task.valid.texts}
        return TunedSide(folder, role, texts)

    recipe = request.recipe([task.mapped(before) for task in tasks], side)
    course = train(recipe, loop, file=checkpoint, about=about, resume=request.resume, report=report)
    learned, params = recipe.heads(), recipe.params()
    heads = {role: Head((*before[role].layers, *learned[role].layers)) for role in ROLES}
    models = _models(request.out, start, recipe.tuned)
    after = load(models) if recipe.tuned else tasks
    metrics = {
        f"{task.name}: {what}" if len(tasks) > 1 else what: found
        for task, changed in zip(tasks, after, strict=True)
        for what, found in before_and_after(task, changed.mapped(heads), params).items()
    }
    methods: dict[str, dict[str, float]] = {} if params is None else {"nnn": params}
    identity = artefact.write_artefact(
        request.out,
        kind=request.kind,
        base_name=base_name,
        base=encoder.identity,
        heads=heads,
        models=sorted(models),
        params=methods,
        about=_about(request, tasks, about, course, metrics),
        cache_dir=cache_dir,
    )
    checkpoint.unlink(missing_ok=True)
    return TrainingResult(identity, course, metrics, methods)


def _start(folder: Path | None, base: EncoderIdentity, cache_dir: Path) -> TrainingStart:
    if folder is None:
        return TrainingStart({role: Head() for role in ROLES})
    if not is_trained(folder):
        raise ConfigurationError(f"[{folder}] is no folder that `es-ttc train` has finished: name one with {CARD}")
    card = ModelCard.read(folder)
    if card.base.encoder_identity != base:
        raise ConfigurationError(
            f"[{folder}] was trained on [{card.base.encoder_identity.key}], and the encoder is [{base.key}]: give the "
            "same --encoder"
        )
    models = {role: folder / role for role in card.models}
    return TrainingStart(heads_in(folder, card), models, trained_identity(folder, card, FileHashes(cache_dir)).key)


def _below(encoder: Encoder, models: Mapping[Role, Path], cache_dir: Path) -> Encoder:
    """Return the encoder under the heads: the base encoder, or fine-tuned models."""
    if not models:
        return encoder
    bases: dict[Role, Encoder] = dict.fromkeys(ROLES, encoder)
    for role, folder in models.items():
        bases[role] = cached(load_encoder(f"{folder}@torch", cache_dir=cache_dir), cache_dir / "encodings")
    return TrainedEncoder(bases, {role: Head() for role in ROLES}, encoder.identity)


def _models(out: Path, start: TrainingStart, tuned: Mapping[Role, TunedSide]) -> dict[Role, Path]:
    """Write the fine-tuned models of each role, new and initial ones."""
    found: dict[Role, Path] = {}
    for role in ROLES:
        folder = out / role
        if role in tuned:
            tuned[role].write(folder)
        elif role in start.models:
            shutil.copytree(start.models[role], folder, dirs_exist_ok=True)
        else:
            continue
        found[role] = folder
    return found


def _about(
    request: TrainingRequest,
    tasks: Sequence[TrainingTask],
    about: Mapping[str, Any],
    course: TrainingProgress,
    metrics: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Return the fields of a card that serving does not need."""
    return {
        "data": {
            "name": ", ".join(task.name for task in tasks),
            "digests": about["data"],
            "documents": sum(len(task.documents) for task in tasks),
            "train_queries": sum(len(task.train) for task in tasks),
            "valid_queries": sum(len(task.valid) for task in tasks),
            "valid": "train, a seeded part held out" if any(task.held_out for task in tasks) else "valid",
        },
        "start": about["start"],
        "options": about["options"],
        "loop": asdict(request.loop),
        "course": course.course(),
        "metrics": metrics,
    }


def _digest(task: TrainingTask) -> str:
    total = hashlib.sha256()
    for rows in (task.documents, task.train.vectors, task.valid.vectors):
        total.update(np.ascontiguousarray(rows).tobytes())
    for relevant in (*task.train.relevant, *task.valid.relevant):
        total.update(relevant.astype(np.int64).tobytes() + b";")
    return total.hexdigest()[:16]
