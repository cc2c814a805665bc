"""Take the documentation's picture of the Judge tab: a judge by the collection's own judgements, with a real browser.

    python -m benchmarks.judging_picture --engine http://127.0.0.1:9200

The page itself pools the queries of the Python library's documentation. All but the shown query's last document are
graded before the picture is taken.
"""

import argparse
import asyncio
import io
import shutil
from urllib.parse import urlencode

import aiohttp
from PIL import Image
from playwright.async_api import Page, async_playwright

from benchmarks.figures import FOLDER
from benchmarks.playground import ARGUMENTS, COLOURS
from benchmarks.served import ENCODER, delete, gateway, opened
from es_ttc.encoders import load_encoder
from es_ttc.lab.demo import exhibit, stdlib
from es_ttc.lab.evaluation.datasets import Collection

INDEX = "python-docs"
QUERIES = 40
JUDGE = "Ada"


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="an engine that runs (`es-ttc engine up`)")
    asyncio.run(taken(parser.parse_args().engine))


async def taken(engine_url: str) -> None:
    """Fill the index, pool by the page, judge, take the picture, and forget everything."""
    encoder, collection = load_encoder(ENCODER), stdlib.generate()
    async with opened(engine_url) as engine:
        await exhibit.fill(engine, INDEX, collection, encoder)
        try:
            with gateway(engine_url, ui=True) as running:
                async with async_playwright() as playwright:
                    found = shutil.which("chromium") or shutil.which("google-chrome")
                    browser = await playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
                    page = await browser.new_page(viewport={"width": 1280, "height": 860})
                    page.set_default_timeout(300_000)
                    await page.goto(f"{running.url}/_ttc/ui/#/judge?{urlencode({'index': INDEX})}")
                    await pooled(page, list(collection.queries.values())[:QUERIES])
                    await judged(f"{running.url}/_ttc/judgements/{INDEX}", collection)
                    await page.reload()
                    await page.locator(".card").wait_for()
                    await page.locator(".standing tbody").wait_for()
                    await page.wait_for_timeout(500)
                    picture = Image.open(io.BytesIO(await page.screenshot()))
                    picture.convert("RGB").quantize(COLOURS).save(FOLDER / "playground-judge.png", optimize=True)
                    await browser.close()
        finally:
            forget = {"query": {"term": {"index": INDEX}}}
            await engine.request("POST", "/ttc-judgements/_delete_by_query", params={"refresh": "true"}, body=forget)
            await delete(engine, INDEX)


async def pooled(page: Page, queries: list[str]) -> None:
    """Name the judge, and pool queries."""
    await page.get_by_label("Your name").fill(JUDGE)
    await page.get_by_label("Queries, one a line").fill("\n".join(queries))
    await page.get_by_role("button", name="Pool", exact=True).click()
    await page.locator(".card").wait_for()


async def judged(address: str, collection: Collection) -> None:
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
