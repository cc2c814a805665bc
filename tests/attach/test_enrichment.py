"""Phrases in the documents of an index that people already use: features stay valid, a change drops the phrases."""

from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.enrichment_turn import take_turn
from es_ttc.enrichment.jobs.enrichment_work import finish
from es_ttc.enrichment.jobs.record import JobStatus
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.submission import JobRequest
from es_ttc.enrichment.jobs.turn import TurnEnd
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach import fill_attached
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.spec import IndexSpec
from tests.attach.conftest import attach, put, update
from tests.attach.test_beside import ask, scores
from tests.serving.client import search
from tests.support.jobs import Workplace
from tests.support.llm import scripted_model

ON_ONE_ENGINE = True

CATS = [f"d{number}" for number in range(4)]


@pytest.mark.processors
async def test_features_inside_carry_enrichment_too(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path
) -> None:
    await attach(engine, shop, spec, encoder, inside=True)
    before = scores(ask(gateway, shop))
    assert (await add_enrichment(engine, shop)).attached
    found = {"query": {"ttc": {"method": "rm3", "query_text": "feline", "params": {"weight": 0}}}, "size": 40}
    async with scripted_model(lambda body: _proposed(body["prompt"])) as model:
        place = Workplace(engine.url, shop, model.url, tmp_path)
        shown = await _enriched(engine, place)
        assert (shown.state, shown.progress.done, shown.progress.skipped) == ("completed", 19, 1)
        assert sorted(search(gateway, shop, found).ids) == CATS
        reply = ask(gateway, shop)
        assert (reply.json()["ttc"]["scored"], reply.json()["ttc"].get("stale")) == (19, None)
        assert scores(reply) == pytest.approx(before, abs=1e-6)
        versions = await _versions(engine, shop)
        assert all(
            marked in (None, version) for version, marked in versions.values()
        )  # valid without a look at the text
        [filled] = await fill_attached(engine, shop, encoder)
        assert (filled.written, await _versions(engine, shop)) == (0, versions)
        # A new price leaves phrases where they are. A new text is somebody else's: the fill takes them out.
        await update(engine, shop, "d0", {"price": 99})
        await update(engine, shop, "d1", {"title": "The dog", "body": "A dog barks."})
        await put(engine, shop, {"new": {"title": "The cat", "body": "It purrs."}})
        await fill_attached(engine, shop, encoder)
        await engine.refresh(shop)
        assert sorted(search(gateway, shop, found).ids) == [name for name in CATS if name != "d1"]
        asked = len(model.asked)
        again = await _enriched(engine, place)
        assert (again.progress.done, len(model.asked) - asked) == (2, 2)
        assert sorted(search(gateway, shop, found).ids) == ["d0", "d2", "d3", "new"]
        assert scores(ask(gateway, shop)).keys() == before.keys() | {"new"}


async def test_features_beside_an_index_cannot_and_it_says_what_can(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    for name in (shop, f"ttc-side-{shop}"):
        with pytest.raises(InvalidRequest, match=r"phrases must be in the documents .* --in-index"):
            await add_enrichment(engine, name)


async def _enriched(engine: Engine, place: Workplace) -> JobStatus[Any]:
    settings = place.settings
    job = (await submission.submit(engine, settings, JobRequest(index=place.index, tau=1.0, lanes=1))).job.id
    store = JobStore(engine, settings.jobs_index)
    while (end := await take_turn(store, settings, None, job, 0)) is TurnEnd.TIME:
        pass
    assert end is TurnEnd.NOTHING_LEFT
    await finish(store, job)
    return await commands.shown(engine, settings, job)


async def _versions(engine: Engine, index: str) -> dict[str, tuple[int, int | None]]:
    """Return each document's `_version`, and that which its features are valid for."""
    await engine.refresh(index)
    body = {"size": 100, "version": True, "_source": False, "docvalue_fields": ["ttc.version"]}
    hits = (await engine.search(index, body))["hits"]["hits"]
    return {hit["_id"]: (hit["_version"], hit.get("fields", {}).get("ttc.version", [None])[0]) for hit in hits}


def _proposed(question: str) -> str:
    document = question.rpartition("Document:")[2]
    return "feline, pet" if "cat" in document else "beast"
