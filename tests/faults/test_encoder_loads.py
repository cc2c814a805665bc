"""Documents that name ever new encoders: few are loaded, one at a time, and failures are remembered."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.errors import ConfigurationError, EncoderBusy
from es_ttc.serving import gateway
from es_ttc.serving.features.encoding import Encoders, EncoderVariants
from es_ttc.serving.pool import BoundedPool
from tests.serving.client import call, search
from tests.serving.conftest import make_index
from tests.serving.corpus import EVERYTHING
from tests.support.gateway import gateway_to

IDENTITY = EncoderIdentity("a-model", "0123456789ab", 384, 256)
NEW = 14
"""Identities that documents name: more than may be loaded."""


class Loaded:
    """Only as much of an encoder as is looked at before anything is encoded."""

    def __init__(self, identity: EncoderIdentity) -> None:
        self.identity = identity


class Loads:
    """Makes encoders that are none, and counts."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.now = 0.0
        self.at_once = 0
        self.fails = False
        self.other = False

    async def make(self, name: str, identity: EncoderIdentity) -> Encoder:
        self.at_once += 1
        assert self.at_once == 1
        await asyncio.sleep(0)
        self.at_once -= 1
        self.made.append(identity.key)
        if self.fails:
            raise ConfigurationError("no such model")
        return Loaded(IDENTITY if self.other else identity)  # type: ignore[return-value]

    def variants(self) -> EncoderVariants:
        return EncoderVariants(self.make, lambda: self.now)


def cut(dims: int) -> EncoderIdentity:
    return replace(IDENTITY, dims=dims)


async def test_encoder_variants_beyond_eight_are_limited_to_one_a_minute() -> None:
    loads = Loads()
    variants = loads.variants()
    for dims in range(1, 9):
        made = await variants.of("a", cut(dims))
        assert made is not None
    with pytest.raises(EncoderBusy, match="es-ttc serve --encoder"):
        await variants.of("a", cut(9))
    assert await variants.of("a", cut(8))  # it is kept
    loads.now = 60
    assert await variants.of("a", cut(9))
    with pytest.raises(EncoderBusy):
        await variants.of("a", cut(10))
    assert len(loads.made) == 9


async def test_encoders_are_loaded_one_at_a_time_and_few_wait() -> None:
    loads = Loads()
    variants = loads.variants()
    asked = [asyncio.create_task(variants.of("a", cut(1 + number % 8))) for number in range(16)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    refused = [one for one in outcomes if isinstance(one, EncoderBusy)]
    assert 0 < len(refused) < 16
    assert all(isinstance(one, EncoderBusy | Loaded) for one in outcomes)
    assert len(loads.made) == len(set(loads.made)) == 5


async def test_cancelled_load_is_left_to_the_next_waiter() -> None:
    loads = Loads()
    variants = loads.variants()
    asked = asyncio.create_task(variants.of("a", cut(1)))
    await asyncio.sleep(0)
    asked.cancel()
    assert await variants.of("a", cut(1))
    assert len(loads.made) == 1


@pytest.mark.parametrize("other", [False, True])
async def test_a_failure_is_remembered_for_a_while(*, other: bool) -> None:
    loads = Loads()
    loads.fails, loads.other = not other, other
    variants = loads.variants()
    for _ in range(3):
        if other:
            assert await variants.of("a", cut(1)) is None
        else:
            with pytest.raises(ConfigurationError, match="no such model"):
                await variants.of("a", cut(1))
    assert len(loads.made) == 1
    loads.now, loads.fails, loads.other = 61, False, False
    assert await variants.of("a", cut(1))
    assert len(loads.made) == 2


async def test_an_encoder_that_cannot_be_loaded_is_not_loaded_by_every_search() -> None:
    loads: list[str] = []

    def load(name: str, folder: Path) -> Encoder:
        loads.append(name)
        raise ConfigurationError("no such model")

    pool = BoundedPool("testing", threads=1, queue=8)
    encoders = Encoders(["a"], Path(), load, lambda *_: load("", Path()), pool)
    for _ in range(5):
        with pytest.raises(ConfigurationError):
            await encoders.first()
    assert loads == ["a"]
    pool.close()


@pytest.fixture
def indices(opensearch_url: str, index_name: str, encoder: Encoder) -> list[str]:
    """Indices whose only document names an encoder that is the configured one, cut to ever fewer dimensions."""
    make_index(opensearch_url, index_name, encoder)
    mappings = call(opensearch_url, "GET", f"/{index_name}/_mapping").json()[index_name]["mappings"]
    names = [f"{index_name}-{number}" for number in range(NEW)]
    for number, name in enumerate(names):
        made = {"mappings": mappings, "settings": {"index.knn": True, "number_of_shards": 1}}
        assert call(opensearch_url, "PUT", f"/{name}", made).status == 200
        key = replace(encoder.identity, dims=383 - number).key
        document = {"kind": "animal", "ttc": {"hash": f"h{number}-doc_values", "encoder": key}}
        assert call(opensearch_url, "PUT", f"/{name}/_doc/1?refresh=true", document).status == 201
    return names


def test_indices_that_name_ever_new_encoders_load_no_more_than_a_few(
    opensearch_url: str, index_name: str, indices: list[str], encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load_variant = gateway._load_variant

    def counted(threads: int, identity: EncoderIdentity, name: str, folder: Path) -> Encoder:
        loads.append(identity.key)
        return load_variant(threads, identity, name, folder)

    monkeypatch.setattr(gateway, "_load_variant", counted)

    def asked(url: str, index: str, **section: Any) -> Any:
        ttc = {"method": "spectral", "query_text": "which cat drinks milk?", **section}
        return search(url, index, {"query": EVERYTHING, "rescore": {"window_size": 60, "ttc": ttc}})

    with gateway_to(opensearch_url, encoder, encoder="minilm@onnx") as url:
        assert asked(url, index_name).json()["ttc"]["applied"]
        answers = [asked(url, name) for name in indices]
        assert len(loads) == 8
        assert asked(url, index_name).json()["ttc"]["applied"]
        again = [asked(url, name) for name in indices]
        failed = asked(url, indices[-1], on_error="fail")
    assert len(loads) == 8
    for reply in (*answers, *again):
        assert reply.status == 200, reply.body
        assert reply.json()["ttc"]["applied"] is False
    for reply in answers[8:]:
        assert "too many encoders were loaded lately" in reply.json()["ttc"]["reason"]
    assert failed.status == 503
    assert json.loads(failed.body)["error"]["type"] == "ttc_encoder_busy_exception"
