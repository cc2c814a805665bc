"""The training loop: epochs of batches, validation after each, the best epoch is kept, checkpoints in between.

All randomness is a function of the seed, the epoch and the step, so a run that resumes from its last checkpoint gives
the same result, bit for bit on the same machine, as an uninterrupted one. A checkpoint is one file of safetensors, with
JSON in its header: replaced as a whole, without pickle.
"""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as packed
from torch import Tensor, nn

from es_ttc.common.files import replace_file
from es_ttc.encoders.devices import device_of
from es_ttc.errors import ConfigurationError
from es_ttc.lab.training.data import Places
from es_ttc.lab.training.options import LoopOptions

RESUMABLE_OPTIONS = ("device", "threads", "save_seconds")  # options of the loop that a resumed run may change


class Recipe(ABC):
    """One kind of training."""

    learned: nn.Module
    examples: int

    def begin_epoch(self, random: np.random.Generator) -> None:  # noqa: B027 - most kinds draw nothing
        """Draw the random choices of an epoch (dropped edges, negatives), if there are any."""

    @abstractmethod
    def loss(self, batch: Places, random: np.random.Generator) -> Tensor:
        """Return the loss of some examples."""

    @abstractmethod
    def validate(self) -> float:
        """Return the validation's measure, greater is better; not finite if the solver selects nothing."""


@dataclass(slots=True)
class TrainingProgress:
    """Position and results of a run."""

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    step_losses: list[float] = field(default_factory=list)
    valid: list[float] = field(default_factory=list)
    best: int = 0

    def course(self) -> dict[str, Any]:
        """Return the best epoch and each epoch's figures, as artefacts record them."""
        return {"best_epoch": self.best, "losses": self.losses, "valid": self.valid}


ReportTraining = Callable[[TrainingProgress, int], None]  # gets each step, and steps of an epoch


def train(
    recipe: Recipe,
    options: LoopOptions,
    *,
    file: Path | None = None,
    about: Any = None,
    resume: bool = False,
    report: ReportTraining = lambda *_: None,
) -> TrainingProgress:
    """Train, and load the weights of the best epoch."""
    device = device_of(options.device, mps=False)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    recipe.learned.to(device)
    parameters = [parameter for parameter in recipe.learned.parameters() if parameter.requires_grad]
    where = TrainingProgress()
    if not parameters:  # a whitening needs no training
        where.valid.append(_validated(recipe))
        return where
    optimiser = torch.optim.AdamW(parameters, lr=options.learning_rate, weight_decay=options.weight_decay)
    best = _copy(recipe.learned)

    def save() -> None:
        if file is not None:
            save_checkpoint(file, recipe.learned, optimiser, best, where, about)

    if resume and file is not None and file.exists():
        where = TrainingProgress(**load_checkpoint(file, recipe.learned, optimiser, best, about))
    if not where.valid:
        where.valid.append(_validated(recipe))
    steps = math.ceil(recipe.examples / options.batch)
    while where.epoch < options.epochs and where.epoch - where.best < options.patience:
        saved = time.monotonic()
        for loss in _epoch(recipe, options, optimiser, where, steps):
            where.step += 1
            where.step_losses.append(loss)
            if time.monotonic() - saved >= options.save_seconds:
                save()
                saved = time.monotonic()
            report(where, steps)
        where.losses.append(float(np.mean(where.step_losses[-steps:])))
        where.epoch, where.step = where.epoch + 1, 0
        value = _validated(recipe)
        where.valid.append(value)
        if value > where.valid[where.best]:
            where.best = where.epoch
            best = _copy(recipe.learned)
        save()
        report(where, steps)
        if not math.isfinite(value):
            break  # B.5: "or if the FISTA solver returns a degenerate all-zero solution"
    recipe.learned.load_state_dict(best)
    return where


def _epoch(
    recipe: Recipe, options: LoopOptions, optimiser: torch.optim.Optimizer, where: TrainingProgress, steps: int
) -> Iterator[float]:
    """Run the remaining steps of an epoch, and yield the loss of each."""
    recipe.learned.train()
    order = np.random.default_rng([options.seed, where.epoch]).permutation(recipe.examples)
    recipe.begin_epoch(np.random.default_rng([options.seed, where.epoch, 1]))
    kind = device_of(options.device, mps=False).type
    for step in range(where.step, steps):
        batch = order[step * options.batch : (step + 1) * options.batch]
        random = np.random.default_rng([options.seed, where.epoch, 2, step])
        torch.manual_seed(int(random.integers(2**62)))  # enables dropout of a fine-tuned model
        with torch.autocast(kind, torch.bfloat16, enabled=options.precision == "bfloat16"):
            loss = recipe.loss(batch, random)
        if not torch.isfinite(loss):
            raise ConfigurationError(
                f"the loss is {float(loss)} at epoch {where.epoch + 1}, step {step + 1}: take a smaller learning rate, "
                "or float32"
            )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        yield loss.item()


@torch.no_grad()
def _validated(recipe: Recipe) -> float:
    recipe.learned.eval()
    return recipe.validate()


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


_STATE = "state"


def save_checkpoint(
    file: Path,
    learned: nn.Module,
    optimiser: torch.optim.Optimizer,
    best: dict[str, Tensor],
    where: TrainingProgress,
    about: Any,
) -> None:
    """Write a checkpoint; a reader sees the previous one or this one, never a part."""
    tensors = {f"learned.{name}": tensor for name, tensor in learned.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for number, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{name}": tensor for name, tensor in moments.items()}
    state = {"where": asdict(where), "about": about}
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    replace_file(file, packed(own, metadata={_STATE: json.dumps(state)}))


def load_checkpoint(
    file: Path, learned: nn.Module, optimiser: torch.optim.Optimizer, best: dict[str, Tensor], about: Any
) -> dict[str, Any]:
    """Read a checkpoint into the trained modules, and return the run's position; refuse one of another run."""
    try:
        with safe_open(file, framework="pt") as found:
            state = json.loads((found.metadata() or {})[_STATE])
            _require_same(file, state["about"], json.loads(json.dumps(about)))
            tensors = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118 - no mapping
        learned.load_state_dict(_below("learned.", tensors))
        best.update(_below("best.", tensors))
        kept: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _below("optimiser.", tensors).items():
            number, _, moment = name.partition(".")
            kept.setdefault(int(number), {})[moment] = tensor
        optimiser.load_state_dict({"state": kept, "param_groups": optimiser.state_dict()["param_groups"]})
        where: dict[str, Any] = state["where"]
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"checkpoint [{file}] cannot be read: {' '.join(str(error).split())[:300]}") from error
    return where


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _require_same(file: Path, before: Any, now: Any) -> None:
    if before == now:
        return
    names = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    differences = "; ".join(
        f"[{name}] was {json.dumps(before.get(name))}, is {json.dumps(now.get(name))}" for name in names
    )
    raise ConfigurationError(
        f"checkpoint [{file}] is of another run: {differences}. Give the same options, or another --out"
    )
