"""What the tests of faults share with those of the gateway: an engine, a gateway in front of it, an index behind."""

from tests.gateway.conftest import behind, encoder

__all__ = ["behind", "encoder"]
