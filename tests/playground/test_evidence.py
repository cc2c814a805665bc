"""An opened hit in a real browser: the heat map, the signals, the selection, the walk, the phrases."""

import json
import re

import pytest
from playwright.async_api import Locator, Page, expect

from es_ttc.engine.connect import connected
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import build_graph, delete_graphs
from es_ttc.settings import EngineSettings
from tests.playground.conftest import OpenPage, Playground, documents, faults_of_accessibility
from tests.serving.client import call

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

QUERY = "an animal that drinks milk"
SCALES = (1, 3, 5, 7, 10, 15, 20, 30)


async def opened(page: Page, rank: int = 1) -> Locator:
    """Open a hit of the second column, and return its dialog once the evidence is there."""
    await page.locator(".column").nth(1).locator(".hit").nth(rank - 1).click()
    await expect(page.locator(".evidence")).to_be_visible()
    return page.get_by_role("dialog")


async def levels(dialog: Locator) -> list[float]:
    """Return how strongly each token of the text is marked."""
    found: list[float] = await dialog.locator(".text .cell").evaluate_all(
        "cells => cells.map(cell => Number(cell.style.getPropertyValue('--level')))"
    )
    return found


async def test_the_heat_map_follows_scale_and_query_token(either_playground: Playground, open_page: OpenPage) -> None:
    page = await open_page(either_playground.search(QUERY), color_scheme="dark")
    dialog = await opened(page)
    await expect(dialog).to_contain_text("What each signal adds")
    await expect(dialog.locator(".signals tbody tr")).to_have_count(4)
    key = await page.locator(".column").nth(1).locator(".hit").first.get_attribute("data-key")
    [document] = [one for one in documents() if key and one["_id"] == key.split("\n")[1]]
    assert await dialog.locator(".text").all_inner_texts() == [document["title"], document["text"]]
    over_scales = await levels(dialog)
    assert (max(over_scales), min(over_scales)) == (1, 0)
    assert len(over_scales) > 14
    seen = []
    for scale in SCALES:
        button = dialog.get_by_role("group", name="Scales").get_by_role("button", name=re.compile(f"^{scale} "))
        await button.click()
        await expect(button).to_have_attribute("aria-pressed", "true")
        seen.append(await levels(dialog))
    assert [max(column) for column in zip(*seen, strict=True)] == over_scales
    await dialog.get_by_role("button", name="Query tokens").click()
    await dialog.get_by_role("group", name="Query tokens").get_by_role("button", name="milk").click()
    await dialog.get_by_role("button", name="greatest in the text").click()
    await expect(dialog.locator(".peak")).to_have_text("milk")
    assert await faults_of_accessibility(page) == []


async def test_markup_in_a_hit_s_evidence_is_text(playground: Playground, open_page: OpenPage) -> None:
    page = await open_page(playground.search("a peacock in the shed"), width=360)
    await page.locator(".hit:visible").first.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator(".text .cell").first).to_be_visible()
    await expect(dialog.locator(".text").last).to_contain_text("<script>window.hacked = true</script>")
    assert await page.locator("#app img, #app script").count() == 0
    assert await page.evaluate("window.hacked") is None
    assert await dialog.evaluate("e => e.scrollWidth <= e.clientWidth")


async def test_the_selection_and_the_phrases(playground: Playground, open_page: OpenPage) -> None:
    page = await open_page(
        playground.search(QUERY, json.dumps(["bm25", {"method": "nnn", "params": {"documents": 3}}]))
    )
    dialog = await opened(page)
    await expect(dialog).to_contain_text("Selected, with coefficient")
    assert await faults_of_accessibility(page) == []

    page = await open_page(playground.search("drinks milk", '["bm25","rm3"]'))
    dialog = await opened(page)
    body = {"query": {"ttc": {"method": "rm3", "query_text": "drinks milk", "detail": True}}}
    first = call(playground.gateway, "POST", f"/{playground.index}/_search", body).json()["hits"]["hits"][0]
    assert await dialog.locator(".phrases mark").all_inner_texts() == first["_ttc"]["matched"]
    await expect(dialog).to_contain_text("What each signal would add to blend")
    assert await dialog.locator(".text .cell").count() > 14


async def test_the_walk_is_told(playground: Playground, open_page: OpenPage) -> None:
    async with connected(EngineSettings(engine=playground.engine)) as engine:
        try:
            await build_graph(engine, playground.index, GraphParams(degree=6, candidates=20))
            columns = json.dumps(["bm25", {"method": "rgs", "params": {"seeds": 2, "budget": 30}}])
            page = await open_page(playground.search("trout", columns))
            await expect(page.locator(".column").nth(1).locator(".hit")).to_have_count(10)
            dialog = await opened(page)
            await expect(dialog.locator(".walk p").first).to_contain_text("ound by the first pass")
            await expect(dialog.locator(".walk .hint")).to_contain_text("30 documents judged")
            assert await faults_of_accessibility(page) == []
        finally:
            await delete_graphs(engine, playground.index)
