"""The gateway of the serving tests."""

from tests.serving.conftest import all_stacks, encoder, stack

__all__ = ["all_stacks", "encoder", "stack"]
