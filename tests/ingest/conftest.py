import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.spec import IndexSpec


@pytest.fixture
def spec(encoder: Encoder) -> IndexSpec:
    return IndexSpec(encoder.identity, scales=(1, 3, float("inf")), max_tokens=64)


@pytest.fixture
async def index(engine: Engine, index_name: str, spec: IndexSpec) -> str:
    await create_index(engine, index_name, spec)
    return index_name
