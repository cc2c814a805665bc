"""Token vectors of a side index moved to a smaller storage: nothing is encoded, and searches go on."""

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach import attach_beside
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.attach.map_vectors import require_coarser
from es_ttc.index.ingest import encode_documents
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.readers import reader_of
from es_ttc.index.mappings.spec import HASH, IndexSpec
from es_ttc.rescorers.base import Feature
from es_ttc.vectors.codecs import PROFILES, Storage
from es_ttc.vectors.tokens import TokenVectors
from tests.attach.conftest import MAPPING, SETTINGS, attach, corpus, update
from tests.attach.test_beside import ask, scores

ON_ONE_ENGINE = True


class Silent:
    """An encoder that encodes no document, except some texts."""

    def __init__(self, encoder: Encoder, texts: Set[str] = frozenset()) -> None:
        self._encoder = encoder
        self._texts = texts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, texts: Sequence[str], **options: Any) -> Any:
        assert self._texts >= set(texts)
        return self._encoder.encode(texts, **options)


async def stored(engine: Engine, index: str) -> dict[str, tuple[TokenVectors, str]]:
    """Return by id the token vectors and the content hash of every document of an index."""
    reader = reader_of("doc_values")
    request = reader.request([Feature.TOKENS])
    body = {**request, "size": 100, "docvalue_fields": [*request["docvalue_fields"], HASH]}
    found = {}
    for hit in (await engine.search(index, body))["hits"]["hits"]:
        if (tokens := reader.read(hit, Feature.TOKENS)) is not None:
            found[hit["_id"]] = tokens.value, hit["fields"][HASH][0]
    return found


@pytest.mark.parametrize("storage", [Storage("int4"), PROFILES["small"], Storage("float16", "repeated_words")])
async def test_attached_features_move_into_a_new_side_index(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder, storage: Storage
) -> None:
    await attach(engine, shop, replace(spec, codec="float16"), encoder)
    before = scores(ask(gateway, shop))
    filled = await attach(engine, shop, replace(spec, **storage._asdict()), Silent(encoder))
    assert (filled.carried, filled.written, filled.failed) == (20, 0, 0)
    reply = ask(gateway, shop)
    assert (reply.json()["ttc"]["scored"], reply.json()["ttc"].get("stale")) == (19, None)
    assert scores(reply) == pytest.approx(before, abs=0.02 if storage == Storage("int4") else 0.08)
    held = (await Indices.behind(engine, shop)).only()
    [fresh] = encode_documents([corpus()["d2"]], held.spec, encoder)
    tokens, content = (await stored(engine, held.index))["d2"]
    assert (tokens.codec, content) == (storage.codec, fresh.hash)
    assert fresh.tokens is not None
    assert tokens.values.shape == fresh.tokens.vectors.values.shape
    assert tokens.read == fresh.tokens.vectors.read
    assert np.mean(tokens.values == fresh.tokens.vectors.values) > 0.9  # but for float16 beside a border


@pytest.mark.parametrize("engine_url", ["opensearch", "elasticsearch"], indirect=True)
async def test_attach_like_another_index_encodes_only_documents_of_other_text(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    before = scores(ask(gateway, shop))
    reindexed = f"{shop}-2"
    await engine.create_index(reindexed, {"settings": SETTINGS, "mappings": MAPPING})
    body = {"source": {"index": shop}, "dest": {"index": reindexed}}
    await engine.request("POST", "/_reindex", params={"refresh": "true"}, body=body)
    await update(engine, reindexed, "d0", {"body": "A parrot talks."})
    changed = Silent(encoder, {"The cat A parrot talks."})
    [source] = await Index.behind(engine, reindexed)
    earlier = (await Indices.behind(engine, shop)).only().holder
    filled = await attach_beside(engine, source, spec, changed, like=earlier)
    assert (filled.carried, filled.written, filled.unchanged, filled.failed) == (19, 1, 0, 0)
    after = scores(ask(gateway, reindexed))
    assert after.keys() == before.keys()
    others = before.keys() - {"d0"}
    assert {name: after[name] for name in others} == pytest.approx({name: before[name] for name in others}, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "after", "says"),
    [
        ({"codec": "int2"}, Storage("int8"), r"\[int2\], which is coarser than \[int8\]"),
        ({"skip_tokens": "stop_words"}, Storage("int2", "punctuation"), r"has no vectors for \[stop_words\]"),
        ({"tokens": "nested"}, Storage("int2"), r"keeps its tokens as \[nested\]"),
        ({"tokens": "none"}, Storage("int2"), r"keeps its tokens as \[none\]"),
    ],
)
def test_require_coarser_refuses_finer_codecs_more_tokens_and_other_storage(
    spec: IndexSpec, change: dict[str, Any], after: Storage, says: str
) -> None:
    before = replace(spec, **change)
    with pytest.raises(InvalidRequest, match=says):
        require_coarser(before, replace(before, **after._asdict()), "articles")
