"""The name under which the gateway subclasses :class:`es_ttc.engine.protocol.Engine`."""

from es_ttc.engine.protocol import Detected
from es_ttc.engine.protocol import Engine as ClientEngine

__all__ = ["ClientEngine", "Detected"]
