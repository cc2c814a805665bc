"""Every test here runs with each build of the loops that this processor has instructions for.

Where es-ttc was installed without a C compiler there is none, and pytest skips the tests.
"""

from collections.abc import Iterator

import pytest

from es_ttc.rescorers import compiled

BUILDS: tuple[str, ...] = ()
if compiled.available():
    from es_ttc.rescorers.compiled import loops

    BUILDS = loops.builds()


@pytest.fixture(autouse=True, params=BUILDS)
def build(request: pytest.FixtureRequest) -> Iterator[str]:
    """The build's name."""
    loops.use(request.param)
    yield request.param
    loops.use(BUILDS[-1])
