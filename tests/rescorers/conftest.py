"""Scores come from numpy unless a test asks for the compiled loops, whatever ran before it."""

from collections.abc import Iterator

import pytest

from es_ttc.rescorers import compiled


@pytest.fixture(autouse=True)
def _numpy() -> Iterator[None]:
    before = compiled.enabled()
    compiled.enable(False)
    yield
    compiled.enable(before)
