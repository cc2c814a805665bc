"""The one training loop: epochs of batches, validation after each, the best one kept, checkpoints in between.

Everything random is a function of the seed, the epoch and the step, so a run that was killed and goes on from its last
checkpoint takes the same course, bit for bit on the same machine, as one that was not.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from es_ttc.encoders.devices import device_of
from es_ttc.errors import ConfigurationError
from es_ttc.lab.training import checkpoint
from es_ttc.lab.training.data import Places

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How training goes about it, whatever is trained.

    Attributes:
        epochs: At most so many.
        batch: Examples a step.
        learning_rate: AdamW's.
        weight_decay: AdamW's.
        patience: Epochs without a better validation after which it ends.
        seed: Of everything random.
        precision: Of matrix products outside the solver: bfloat16 by autocast, or float32.
        device: auto (CUDA where there is some), cpu, cuda or another torch device.
        threads: Of the processor; torch's own number if None.
        save_seconds: Time between two checkpoints inside an epoch; each epoch ends with one.
    """

    epochs: int = 20
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    patience: int = 3
    seed: int = 0
    precision: Precision = "float32"
    device: str = "cpu"
    threads: int | None = None
    save_seconds: float = 30.0


class Recipe(Protocol):
    """One kind of training.

    Attributes:
        learned: Holds everything that is learned.
        examples: Number of examples of an epoch.
    """

    learned: nn.Module
    examples: int

    def begin_epoch(self, random: np.random.Generator) -> None:
        """Draw what holds for an epoch (dropped edges, negatives)."""
        ...

    def loss(self, batch: Places, random: np.random.Generator) -> Tensor:
        """Return the loss of some examples."""
        ...

    def validate(self) -> float:
        """Return the validation's measure: the greater, the better; not finite where the solver gives nothing."""
        ...


@dataclass(slots=True)
class TrainingProgress:
    """Where a run is.

    Attributes:
        epoch: Epochs that are over.
        step: Steps of the present epoch that are over.
        losses: Mean loss of each epoch.
        step_losses: Loss of every step so far.
        valid: The measure before training and after each epoch.
        best: The epoch with the best validation; 0 is the start.
    """

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    step_losses: list[float] = field(default_factory=list)
    valid: list[float] = field(default_factory=list)
    best: int = 0


Report = Callable[[TrainingProgress, int], None]
"""Called after each step with where the run is, and the steps of an epoch."""


def train(
    recipe: Recipe,
    options: LoopOptions,
    *,
    file: Path | None = None,
    about: Any = None,
    resume: bool = False,
    report: Report | None = None,
) -> TrainingProgress:
    """Train, and leave the recipe with the weights of its best epoch.

    Args:
        recipe: What is trained.
        options: How.
        file: The checkpoint; none is kept if None.
        about: JSON-ready: what must be the same when a run goes on.
        resume: Go on from the checkpoint, where there is one.
        report: Told how it goes.

    Raises:
        ConfigurationError: The checkpoint is of another run, or the loss is not finite.
    """
    report = report or _untold
    device = device_of(options.device, mps=False)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    recipe.learned.to(device)
    parameters = [one for one in recipe.learned.parameters() if one.requires_grad]
    where = TrainingProgress()
    if not parameters:  # a whitening is there at once
        where.valid.append(_validated(recipe))
        return where
    optimiser = torch.optim.AdamW(parameters, lr=options.learning_rate, weight_decay=options.weight_decay)
    best = _copy(recipe.learned)
    if resume and file is not None and file.exists():
        where = TrainingProgress(**checkpoint.load(file, recipe.learned, optimiser, best, about))
    if not where.valid:
        where.valid.append(_validated(recipe))
    steps = math.ceil(recipe.examples / options.batch)
    while where.epoch < options.epochs and where.epoch - where.best < options.patience:
        _epoch(recipe, options, optimiser, where, best, steps, file, about, report)
        where.losses.append(float(np.mean(where.step_losses[-steps:])))
        where.epoch, where.step = where.epoch + 1, 0
        value = _validated(recipe)
        where.valid.append(value)
        if value > where.valid[where.best]:
            where.best = where.epoch
            best = _copy(recipe.learned)
        if file is not None:
            checkpoint.save(file, recipe.learned, optimiser, best, where, about)
        report(where, steps)
        if not math.isfinite(value):
            break  # B.5: "or if the FISTA solver returns a degenerate all-zero solution"
    recipe.learned.load_state_dict(best)
    return where


def _epoch(
    recipe: Recipe,
    options: LoopOptions,
    optimiser: torch.optim.Optimizer,
    where: TrainingProgress,
    best: dict[str, Tensor],
    steps: int,
    file: Path | None,
    about: Any,
    report: Report,
) -> None:
    """Do the steps of an epoch that are left."""
    recipe.learned.train()
    order = np.random.default_rng([options.seed, where.epoch]).permutation(recipe.examples)
    recipe.begin_epoch(np.random.default_rng([options.seed, where.epoch, 1]))
    saved = time.monotonic()
    kind = device_of(options.device, mps=False).type
    while where.step < steps:
        batch = order[where.step * options.batch : (where.step + 1) * options.batch]
        random = np.random.default_rng([options.seed, where.epoch, 2, where.step])
        torch.manual_seed(int(random.integers(2**62)))  # dropout of a model that is tuned
        with torch.autocast(kind, torch.bfloat16, enabled=options.precision == "bfloat16"):
            loss = recipe.loss(batch, random)
        if not torch.isfinite(loss):
            raise ConfigurationError(
                f"the loss is {float(loss)} at epoch {where.epoch + 1}, step {where.step + 1}: take a smaller "
                "learning rate, or float32"
            )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        where.step += 1
        where.step_losses.append(loss.item())
        if file is not None and time.monotonic() - saved >= options.save_seconds:
            checkpoint.save(file, recipe.learned, optimiser, best, where, about)
            saved = time.monotonic()
        report(where, steps)


def _untold(where: TrainingProgress, steps: int) -> None:
    """Tell nobody."""


@torch.no_grad()
def _validated(recipe: Recipe) -> float:
    recipe.learned.eval()
    return recipe.validate()


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
