"""Phrases of a language model must be in the documents, which features in a side index are not."""

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.spec import IndexSpec
from tests.attach.conftest import attach

ON_ONE_ENGINE = True


async def test_features_beside_an_index_cannot_and_it_says_what_can(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    for name in (shop, f"ttc-side-{shop}"):
        with pytest.raises(InvalidRequest, match="`es-ttc index create`"):
            await add_enrichment(engine, name)
