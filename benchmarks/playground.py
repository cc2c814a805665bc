"""The playground's page: its size, when it shows something, and pictures of it for the documentation.

    python -m benchmarks.playground --engine URL [--loads 20] [--pictures docs/images]

A headless Chromium loads the page from a gateway on this machine, each time in a new window without a cache. First
paint and first contentful paint are the browser's own entries; the hits are there when each column has drawn them. The
index is the demonstration's documentation of the standard library.
"""

import argparse
import asyncio
import io
import shutil
import statistics
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.async_api import Browser, Page, async_playwright

from benchmarks.common import heading, table
from benchmarks.served import ENCODER, delete, gateway, opened
from es_ttc.encoders import load_encoder
from es_ttc.lab.demo import exhibit, stdlib
from es_ttc.playground.pages import read_assets

INDEX = "bench-playground"
QUERY = "wait for several tasks"
COLUMNS = '["bm25","hybrid","blend"]'
COLOURS = 256
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
HITS = ".column:last-of-type .hit"
PAINTS = (
    """() => Object.fromEntries(performance.getEntriesByType("paint").map(({name, startTime}) => [name, startTime]))"""
)


def main() -> None:
    """Measure, print the tables, and take pictures if a folder is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="an engine that runs (`es-ttc engine up`)")
    parser.add_argument("--loads", type=int, default=20, help="how often the page is loaded")
    parser.add_argument("--pictures", type=Path, help="folder of the pictures; none are taken without it")
    options = parser.parse_args()
    print(heading("The playground's page", data="the Python library's documentation", packages=("playwright",)))
    print(table(("files", "number", "bytes", "bytes by gzip"), sizes()))
    asyncio.run(measured(options.engine, options.loads, options.pictures))


def sizes() -> list[tuple[str, int, int, int]]:
    """Return number and bytes of the page's files, as they are and as they are sent."""
    assets = read_assets()
    kinds: dict[str, Callable[[str], bool]] = {
        "own JavaScript": lambda name: name.endswith(".js") and "/" not in name,
        "libraries": lambda name: name.startswith("vendor/"),
        "style and page": lambda name: not name.endswith(".js"),
        "all": lambda _: True,
    }
    return [
        (kind, len(found), sum(len(one.body) for one in found), sum(len(one.compressed) for one in found))
        for kind, belongs in kinds.items()
        for found in [[asset for name, asset in assets.items() if belongs(name)]]
    ]


async def measured(engine_url: str, loads: int, pictures: Path | None) -> None:
    """Fill the index, load the page, print the times, take the pictures."""
    encoder = load_encoder(ENCODER)
    async with opened(engine_url) as engine:
        await exhibit.fill(engine, INDEX, stdlib.generate(), encoder)
        try:
            with gateway(engine_url, ui=True) as running:
                async with async_playwright() as playwright:
                    found = shutil.which("chromium") or shutil.which("google-chrome")
                    browser = await playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
                    await _measure(browser, f"{running.url}/_ttc/ui/", loads)
                    if pictures is not None:
                        await _take(browser, f"{running.url}/_ttc/ui/", pictures)
                    await browser.close()
        finally:
            await delete(engine, INDEX)


def search(page: str) -> str:
    """Return the address of the search that is shown."""
    return f"{page}#/search?{urlencode({'index': INDEX, 'q': QUERY, 'columns': COLUMNS})}"


async def _measure(browser: Browser, address: str, loads: int) -> None:
    times: dict[str, list[float]] = {"first-paint": [], "first-contentful-paint": [], "all hits": []}
    for load in range(loads + 1):
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(search(address))
        await page.wait_for_selector(HITS)
        paints = {**await page.evaluate(PAINTS), "all hits": await page.evaluate("performance.now()")}
        if load:  # the first one reads features and encodes the query
            for name in times:
                times[name].append(paints[name])
        await context.close()
    rows = [(name, f"{statistics.median(each):.0f}", f"{max(each):.0f}") for name, each in times.items()]
    print(table((f"of {loads} loads, ms from the navigation's start", "median", "greatest"), rows))


async def _take(browser: Browser, address: str, folder: Path) -> None:
    """Take the documentation's pictures."""

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
        await page.goto(search(address))
        await page.locator(HITS).first.wait_for()
        await act(page)
        await page.wait_for_timeout(500)
        taken = Image.open(io.BytesIO(await page.screenshot()))
        taken.convert("RGB").quantize(COLOURS).save(folder / f"playground-{name}.png", optimize=True)
        await context.close()


if __name__ == "__main__":
    main()
