from collections.abc import AsyncIterator

import pytest

from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.settings import EngineSettings


@pytest.fixture
async def engine(engine_url: str) -> AsyncIterator[Engine]:
    client = await connect(EngineSettings(engine=engine_url))
    yield client
    await client.close()
