"""A run's state in one file of safetensors, with JSON in its header: replaced as a whole, without pickle."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as packed
from torch import Tensor, nn

from es_ttc.errors import ConfigurationError
from es_ttc.lab.evaluation.report import replace

if TYPE_CHECKING:
    from es_ttc.lab.training.loop import TrainingProgress

_STATE = "state"


def save(
    file: Path,
    learned: nn.Module,
    optimiser: torch.optim.Optimizer,
    best: dict[str, Tensor],
    where: "TrainingProgress",
    about: Any,
) -> None:
    """Write a checkpoint; a reader sees the previous one or this one, never a part."""
    tensors = {f"learned.{name}": tensor for name, tensor in learned.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for number, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{name}": tensor for name, tensor in moments.items()}
    state = {"where": asdict(where), "about": about}
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    replace(file, packed(own, metadata={_STATE: json.dumps(state)}))


def load(
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
