"""One training from a BEIR folder to a late-interaction model's folder, as `es-ttc train late` runs it."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from sentence_transformers import MultiVectorEncoder

from es_ttc.encoders.hashing import FileHashes, revision
from es_ttc.encoders.registry import load_encoder
from es_ttc.encoders.sentence_transformers import no_progress_bars
from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation import provenance
from es_ttc.lab.evaluation.metrics import check_metric
from es_ttc.lab.evaluation.rankings import Progress, silent
from es_ttc.lab.evaluation.report import require_writable
from es_ttc.lab.training.artefact import PACKAGES, PAGE, claim, lasting, markdown_page
from es_ttc.lab.training.late.backbone import backbone_folder, build, train_last_layers
from es_ttc.lab.training.late.data import LateTask, load_late_task
from es_ttc.lab.training.late.recipe import LateRecipe
from es_ttc.lab.training.loop import RESUMABLE_OPTIONS, Report, TrainingProgress, train
from es_ttc.lab.training.options import LateOptions, LoopOptions

RECORD = "training.json"
"""File of the settings and the course, in the model's folder. `card.json` would say that it holds heads."""
_SAMPLED = 128
"""Documents whose token vectors give the first projection."""


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


def run(
    request: LateRequest, *, cache_dir: Path, progress: Progress = silent, report: Report = lambda *_: None
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
    model = build(folder, options.shape, _sample(task, loop.seed))
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
    """Return documents at random, for the first projection."""
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
        "date": provenance.now(),
    }


def _write(out: Path, model: MultiVectorEncoder, record: Mapping[str, Any]) -> None:
    """Write the folder under another name, and rename it when it is whole."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        with no_progress_bars():
            model.cpu().eval().save_pretrained(str(partial), create_model_card=False, safe_serialization=True)
        (partial / PAGE).write_text(_page(out, record), encoding="utf-8")
        (partial / RECORD).write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2) + b"\n")
        if out.is_dir():
            out.rmdir()
        partial.rename(out)
    except OSError as error:
        raise ConfigurationError(f"[{out}] cannot be written: {error.strerror}") from error


def _page(out: Path, record: Mapping[str, Any]) -> str:
    course = record["course"]
    losses = ["", *(f"{loss:.4f}" for loss in course["losses"])]
    rows = [[str(epoch), losses[epoch], f"{value:.4f}"] for epoch, value in enumerate(course["valid"])]
    return markdown_page(
        out.resolve().name,
        f"A late-interaction model: {record['backbone']}, fine-tuned by `es-ttc train late` on {record['data']} "
        f"({record['train_queries']:,} train queries, {record['valid_queries']:,} for validation: {record['valid']}). "
        f"Best epoch: {course['best_epoch']}.",
        [["epoch", "mean loss", f"{record['options']['metric']}, validation"], *rows],
        [f"es-ttc index create NAME --encoder {out.name}"],
        f"Options, versions and machine: `{RECORD}`.",
    )
