"""The Judge tab in a real browser: pools, grades by key, reload, two judges at once, standing, accessibility."""

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.playground.conftest import HOSTILE, SECONDS, OpenPage, Playground, faults_of_accessibility
from tests.serving.client import call

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

expect.set_options(timeout=SECONDS * 1000)
QUERIES = ("a peacock in the shed", "an animal that drinks milk")


@pytest_asyncio.fixture(loop_scope="session")
async def judged(either_playground: Playground) -> AsyncIterator[Playground]:
    """A playground whose judgements are forgotten afterwards."""
    yield either_playground
    forget = {"query": {"term": {"index": either_playground.index}}}
    target = "/ttc-judgements/_delete_by_query?refresh=true&conflicts=proceed&ignore_unavailable=true"
    assert call(either_playground.engine, "POST", target, forget).status == 200


def address(playground: Playground) -> str:
    return f"{playground.gateway}/_ttc/ui/#/judge?index={playground.index}"


async def named(page: Page, judge: str) -> None:
    await page.get_by_label("Your name").fill(judge)
    await page.keyboard.press("Tab")


async def graded(page: Page) -> list[str]:
    """Return the places of the shown query: a grade, or a point where there is none."""
    places: list[str] = await page.locator(".place").all_inner_texts()
    return places


async def test_pool_judge_reload_and_stand(judged: Playground, open_page: OpenPage) -> None:
    ada, bo = await open_page(address(judged)), await open_page(address(judged))
    # By keyboard alone: the form is open where nothing is pooled.
    await named(ada, "Ada")
    await ada.get_by_label("Queries, one a line").focus()
    await ada.keyboard.type("\n".join(QUERIES))
    await ada.get_by_label("Documents of each method").fill("3")
    await ada.keyboard.press("Enter")
    await expect(ada.locator(".queries li")).to_have_count(2)

    await bo.reload()
    await named(bo, "Bo")
    for page in (ada, bo):
        await page.get_by_role("link", name=QUERIES[0]).click()
        await expect(page.locator(".grader h2")).to_have_text(QUERIES[0])
        await expect(page.locator(".place").first).to_be_visible()
    places = await ada.locator(".place").count()
    assert places >= 3
    for page, key in ((ada, "3"), (bo, "1")):
        await page.locator(".grader").focus()
        for _ in range(places - 1):
            await page.keyboard.press(key)
        await page.keyboard.press("u")
        await page.keyboard.press("0")
    await asyncio.gather(
        *(expect(page.locator(".grader [role=status]")).to_have_text(re.compile(r", 1 left\s*$")) for page in (ada, bo))
    )

    # The markup of a document is its text.
    await ada.evaluate("window.hacked = false")
    for place in range(places):
        await ada.locator(".place").nth(place).click()
    assert HOSTILE in await text_of_markup(ada, judged)
    assert await ada.evaluate("window.hacked") is False

    expected = [["3"] * (places - 2) + ["0"], ["1"] * (places - 2) + ["0"]]
    for page, grades in zip((ada, bo), expected, strict=True):
        await expect(page.locator(".queries li a", has_text=QUERIES[0])).to_contain_text(f"{places - 1} of {places}")
        await page.reload()
        await expect(page.locator(".place").first).to_be_visible()
        assert sorted(one for one in await graded(page) if one != "·") == sorted(grades)

    await expect(ada.locator(".standing tbody tr")).to_have_count(3)
    await expect(ada.locator(".verdict")).to_contain_text("not clearly yet")
    assert await faults_of_accessibility(ada) == []


async def text_of_markup(page: Page, playground: Playground) -> str:
    """Return what the page shows of the document that holds markup, which is in the pool of the first query."""
    for place in await page.locator(".place").all():
        await place.click()
        text: str = await page.locator(".card").inner_text()
        if "<script>" in text:
            return text
    raise AssertionError(f"no document of the pool of {playground.index} holds markup")


@pytest.mark.parametrize("width", [360, 1600])
async def test_nothing_is_cut_off(playground: Playground, open_page: OpenPage, width: int) -> None:
    body = {
        "queries": [{"id": "q/1 ?", "text": "w" * 300, "runs": [["markup", "d1", "gone"]]}],
        "methods": [{"method": "bm25"}],
    }
    base = f"/_ttc/judgements/{playground.index}"
    assert call(playground.gateway, "POST", f"{base}/pool", body).status == 200
    page = await open_page(f"{address(playground)}&query={quote('q/1 ?')}", width=width, color_scheme="dark")
    await named(page, f"Judge of {width}")
    await expect(page.locator(".place")).to_have_count(3)
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    for place in await page.locator(".place").all():
        await place.click()
        if "gone from the index" in await page.locator(".card").inner_text():
            break
    else:
        raise AssertionError("a document that is gone is not named")
    await page.get_by_role("button", name="on the topic").click()
    await expect(page.locator(".grader [role=status]")).to_contain_text("1 of 3 judged")
    assert await faults_of_accessibility(page) == []
