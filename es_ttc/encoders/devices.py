"""Select the device for torch."""

import torch

from es_ttc.errors import ConfigurationError


def device_of(name: str, *, mps: bool) -> torch.device:
    """Return a device by name; ``auto`` is CUDA if available."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if mps and torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(f"device [{name}] can't be used: {' '.join(str(error).split())[:200]}") from error
    return device
