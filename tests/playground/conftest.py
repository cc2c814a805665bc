"""A real Chromium, and a gateway with the playground before a real engine.

The browser's tests share one event loop, which runs only while one of them does.
"""

import os
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from es_ttc.encoders.base import Encoder
from es_ttc.playground import playground_routes
from es_ttc.playground.pages import lacks_libraries
from tests.serving.client import call
from tests.serving.conftest import make_index
from tests.serving.corpus import corpus
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SECONDS = 60.0
"""How long the page may take for anything: generous, for a busy machine."""
AXE = Path(__file__).parents[2] / "release" / "page" / "node_modules" / "axe-core" / "axe.min.js"
VENDORED = not lacks_libraries()

HOSTILE = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"
"""Markup that runs a script where it is taken for markup."""

OpenPage = Callable[..., Awaitable[Page]]


@dataclass(frozen=True)
class Playground:
    """A gateway with the page, and an index behind it.

    Attributes:
        engine: The engine's address.
        gateway: The gateway's address.
        index: The index's name.
    """

    engine: str
    gateway: str
    index: str

    def search(self, query: str, columns: str = "", index: str = "") -> str:
        """Return the address of a search."""
        params = {"index": index or self.index, "q": query} | ({"columns": columns} if columns else {})
        return f"{self.gateway}/_ttc/ui/#/search?{urlencode(params)}"


def unavailable(what: str) -> None:
    """Skip a test for what is not there; on CI it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"the page must be tested on CI: {what}")
    pytest.skip(what)


@contextmanager
def gateway_with_page(engine: str, encoder: Encoder, **settings: Any) -> Iterator[str]:
    """Run a gateway with the page and yield its address."""
    options = {"scoring_timeout_ms": 20_000, "ui": True} | settings
    with gateway_to(engine, encoder, further=playground_routes, **options) as url:
        yield url


@pytest.fixture(scope="session")
def all_playgrounds(encoder: Encoder) -> Iterator[PerEngine[Playground]]:
    with PerEngine(lambda engine: _playground(engine, encoder)) as per_engine:
        yield per_engine


@contextmanager
def _playground(engine: str, encoder: Encoder) -> Iterator[Playground]:
    name = f"test-page-{uuid.uuid4().hex[:8]}"
    make_index(engine, name, encoder, shards=1, documents=documents())
    try:
        with gateway_with_page(engine, encoder) as gateway:
            yield Playground(engine, gateway, name)
    finally:
        call(engine, "DELETE", f"/{name}")


def documents() -> list[dict[str, Any]]:
    """Texts of animals, one of which is markup."""
    return [*corpus(), {"_id": "markup", "title": f"Shed {HOSTILE}", "text": f"A peacock {HOSTILE} in the shed."}]


@pytest.fixture(scope="session")
def playground(opensearch_url: str, all_playgrounds: PerEngine[Playground]) -> Playground:
    return all_playgrounds.of(opensearch_url)


@pytest.fixture
def either_playground(engine_url: str, all_playgrounds: PerEngine[Playground]) -> Playground:
    """A gateway before each engine in turn."""
    return all_playgrounds.of(engine_url)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """The system's own browser; tests are skipped where there is none, which fails on CI."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        unavailable("no chromium on the path")
    if not VENDORED:
        unavailable("the page's libraries are not there: `python release/vendor.py` fetches them with npm")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(chromium: Browser) -> AsyncIterator[OpenPage]:
    """Open an address in a new window; afterwards no script has failed, and nothing broke the page's policy."""
    faults: list[str] = []
    async with AsyncExitStack() as exits:

        async def opened(url: str, width: int = 1280, height: int = 900, **options: Any) -> Page:
            context = await chromium.new_context(viewport={"width": width, "height": height}, **options)
            exits.push_async_callback(context.close)
            context.set_default_timeout(SECONDS * 1000)
            page = await context.new_page()
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda said: faults.append(said.text) if "Content Security" in said.text else None)
            await page.goto(url)
            return page

        yield opened
    assert faults == []


async def faults_of_accessibility(page: Page) -> list[str]:
    """Return what axe finds on a page that is serious or critical."""
    if not AXE.is_file():
        unavailable("axe-core is not there: `make check` installs it with npm")
    await page.evaluate(AXE.read_text("utf-8"))
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:120]} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
