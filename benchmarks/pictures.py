"""Take the documentation's pictures of the playground: its searches, and the Judge tab, with a real browser.

    python -m benchmarks.pictures --engine URL

The index is the demonstration's documentation of the standard library, behind a gateway of its own. For the Judge tab
the page itself pools the collection's queries; all but the shown query's last document are graded by its judgements.
"""

import argparse
import asyncio
import io
import shutil
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode

import aiohttp
from PIL import Image
from playwright.async_api import Browser, Page, async_playwright

from benchmarks.figures import FOLDER
from benchmarks.served import ENCODER, delete, gateway, opened
from es_ttc.encoders import load_encoder
from es_ttc.lab.demo import exhibit, stdlib
from es_ttc.lab.evaluation.datasets import Collection

INDEX = "python-docs"
SEARCH = {"index": INDEX, "q": "wait for several tasks", "columns": '["bm25","hybrid","blend"]'}
JUDGED_QUERIES = 40
JUDGE = "Ada"
COLOURS = 256
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="an engine that runs (`es-ttc engine up`)")
    asyncio.run(taken(parser.parse_args().engine))


async def taken(engine_url: str) -> None:
    """Fill the index, take the pictures, and forget everything."""
    encoder, collection = load_encoder(ENCODER), stdlib.generate()
    async with opened(engine_url) as engine:
        await exhibit.fill_index(engine, INDEX, collection, encoder)
        try:
            with gateway(engine_url, ui=True) as running:
                async with async_playwright() as playwright:
                    found = shutil.which("chromium") or shutil.which("google-chrome")
                    browser = await playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
                    await _searches(browser, f"{running.url}/_ttc/ui/#/search?{urlencode(SEARCH)}")
                    await _judging(browser, running.url, collection)
                    await browser.close()
        finally:
            forget = {"query": {"term": {"index": INDEX}}}
            pools = "/ttc-judgements/_delete_by_query"
            await engine.request("POST", pools, params={"refresh": "true", "ignore_unavailable": "true"}, body=forget)
            await delete(engine, INDEX)


async def _searches(browser: Browser, address: str) -> None:
    async def searched(page: Page) -> None:
        await page.locator(".column").last.locator(".hit").nth(1).hover()

    async def request_shown(page: Page) -> None:
        await page.locator(".column").last.get_by_role("button", name="Request").click()
        await page.get_by_role("button", name="Python, elasticsearch").click()

    async def explained(page: Page) -> None:
        await page.locator(".column").last.get_by_role("button", name="Why not?").click()
        await page.get_by_label("Id of a document").fill("sched")
        await page.get_by_role("button", name="Explain").click()
        await page.locator("dialog table").wait_for()

    async def hit_opened(page: Page) -> None:
        await page.locator(".hit:visible").nth(1).click()
        await page.locator("dialog .text").first.wait_for()

    async def nothing(_: Page) -> None: ...

    shots: dict[str, tuple[int, int, Any, Callable[[Page], Coroutine[Any, Any, None]]]] = {
        "search": (1280, 760, "light", searched),
        "request": (1280, 760, "dark", request_shown),
        "hit": (1280, 1000, "light", hit_opened),
        "why": (1280, 760, "light", explained),
        "narrow": (360, 700, "dark", nothing),
    }
    for name, (width, height, scheme, act) in shots.items():
        context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        page = await context.new_page()
        await page.goto(address)
        await page.locator(".column:last-of-type .hit").first.wait_for()
        await act(page)
        await _save(page, name)
        await context.close()


async def _judging(browser: Browser, gateway_url: str, collection: Collection) -> None:
    page = await browser.new_page(viewport={"width": 1280, "height": 860})
    page.set_default_timeout(300_000)
    await page.goto(f"{gateway_url}/_ttc/ui/#/judge?{urlencode({'index': INDEX})}")
    await page.get_by_label("Your name").fill(JUDGE)
    await page.get_by_label("Queries, one a line").fill("\n".join([*collection.queries.values()][:JUDGED_QUERIES]))
    await page.get_by_role("button", name="Pool", exact=True).click()
    await page.locator(".card").wait_for()
    await _judge(f"{gateway_url}/_ttc/judgements/{INDEX}", collection)
    await page.reload()
    await page.locator(".card").wait_for()
    await page.locator(".standing tbody").wait_for()
    await _save(page, "judge")


async def _save(page: Page, name: str) -> None:
    await page.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(await page.screenshot()))
    picture.convert("RGB").quantize(COLOURS).save(FOLDER / f"playground-{name}.png", optimize=True)


async def _judge(address: str, collection: Collection) -> None:
    """Grade what is pooled by the collection's judgements, but for the last document of the first query."""
    ids = {text: query for query, text in collection.queries.items()}
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        async with session.get(address) as reply:
            queries = (await reply.json())["queries"]
        for place, query in enumerate(queries):
            async with session.get(f"{address}/queries/{query['id']}", params={"judge": JUDGE}) as reply:
                documents = [one["id"] for one in (await reply.json())["documents"]]
            relevant = collection.qrels[ids[query["text"]]]
            grades = [
                {"query": query["id"], "document": document, "grade": 3 * min(1, relevant.get(document, 0))}
                for document in (documents if place else documents[:-1])
            ]
            await session.post(address, json={"judge": JUDGE, "judgements": grades})


if __name__ == "__main__":
    main()
