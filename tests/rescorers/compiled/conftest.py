"""Every test here runs with each build of the loops that this processor has instructions for."""

from collections.abc import Iterator

import pytest

from es_ttc.rescorers.compiled import loops


@pytest.fixture(autouse=True, params=loops.builds())
def build(request: pytest.FixtureRequest) -> Iterator[str]:
    """The build's name."""
    loops.use(request.param)
    yield request.param
    loops.use(loops.builds()[-1])
