"""Models over a numeric field of an attached index: logged and served alike, from the user's own documents."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.rescorers.learned.fields import NumericField
from es_ttc.rescorers.learned.model import serve_from
from tests.attach.conftest import FIELDS, attach
from tests.attach.test_beside import inside  # noqa: F401 - a fixture
from tests.attach.test_blend import WINDOW
from tests.serving.relay import relay
from tests.support.learned import judged, learned_from, logged, require_served_as_logged

TEXTS = ("our trout hunts at night", "which cat drinks milk?", "snow", "zebra", "an owl on the sofa")


@pytest.fixture(autouse=True)
def _nothing_served() -> Iterator[None]:
    yield
    serve_from(None)


async def test_what_is_logged_from_an_attached_index_is_what_is_served(
    engine: Engine,
    shop: str,
    gateway: str,
    spec: IndexSpec,
    encoder: Encoder,
    inside: bool,  # noqa: F811
    tmp_path: Path,
) -> None:
    await attach(engine, shop, spec, encoder, inside=inside)
    several = judged(TEXTS * 10, [f"d{number}" for number in range(10)])
    with relay(engine.url) as counted:
        await asyncio.to_thread(logged, counted.url, shop, encoder, several, WINDOW, ["price"])
    assert len(counted.passed) < 30  # for fifty queries
    queries = judged(TEXTS, [f"d{number}" for number in range(10)])
    pools = await asyncio.to_thread(logged, engine.url, shop, encoder, queries, WINDOW, ["price"])
    model = learned_from(pools, [NumericField("price")], tmp_path)
    await asyncio.to_thread(require_served_as_logged, gateway, shop, queries, pools, model, FIELDS)
