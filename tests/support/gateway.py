"""A gateway in this process."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from es_ttc.encoders.base import Encoder
from es_ttc.serving.app import FurtherRoutes
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings


def gateway_to(
    engine: str, encoder: Encoder | None = None, /, *, further: FurtherRoutes | None = None, **settings: Any
) -> AbstractContextManager[str]:
    """Run a gateway in front of an engine; its context is the gateway's address.

    A busy machine scores slowly, so the timeout of scoring is 20 s unless the settings say otherwise.

    Args:
        encoder: The encoder of every index; None where nothing is encoded.
    """

    def load(name: str, _folder: Path) -> Encoder:
        if encoder is None:
            raise RuntimeError(f"no encoder is needed, and [{name}] is to be loaded")
        return encoder

    chosen = GatewaySettings(engine=engine, **{"port": 0, "scoring_timeout_ms": 20_000, **settings})
    return running_gateway(chosen, load=load, further=further)
