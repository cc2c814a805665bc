"""Models over a numeric field of an attached index: logged and served alike, from the user's own documents."""

import asyncio
from pathlib import Path

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.rescorers.learned.fields import NumericField
from tests.attach.conftest import FIELDS, attach
from tests.attach.test_blend import WINDOW
from tests.serving.relay import relay
from tests.support.learned import gateway_with, judged, learned_from, logged, require_served_as_logged

ON_ONE_ENGINE = True

TEXTS = ("our trout hunts at night", "which cat drinks milk?", "snow", "zebra", "an owl on the sofa")


async def test_attached_signals_logged_equal_signals_served(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path
) -> None:
    await attach(engine, shop, spec, encoder)
    several = judged(TEXTS * 10, [f"d{number}" for number in range(10)])
    with relay(engine.url) as counted:
        await asyncio.to_thread(logged, counted.url, shop, encoder, several, WINDOW, ["price"])
    assert len(counted.passed) < 30  # for fifty queries
    queries = judged(TEXTS, [f"d{number}" for number in range(10)])
    pools = await asyncio.to_thread(logged, engine.url, shop, encoder, queries, WINDOW, ["price"])
    model = learned_from(pools, [NumericField("price")], tmp_path)
    with gateway_with(tmp_path, engine.url, encoder) as gateway:
        await asyncio.to_thread(require_served_as_logged, gateway, shop, queries, pools, model, FIELDS)
