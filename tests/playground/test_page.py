"""The playground in a real browser: search, faults, keyboard, narrow screens, accessibility."""

import asyncio
import json
import re
import subprocess
import sys
import uuid

import pytest
from playwright.async_api import Page, expect

from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import IndexSpec
from tests.playground.conftest import HOSTILE, SECONDS, OpenPage, Playground, faults_of_accessibility, gateway_with_page
from tests.serving.client import Reply, call
from tests.serving.corpus import corpus
from tests.serving.relay import Passed, relay
from tests.serving.test_engine_requests_of_a_search import attached

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

QUERY = "an animal that drinks milk"
expect.set_options(timeout=SECONDS * 1000)


async def ids(page: Page, column: int) -> list[str]:
    """Return the ids of a column's hits, in order."""
    keys = (
        await page.locator(".column").nth(column).locator(".hit").evaluate_all("hits => hits.map(h => h.dataset.key)")
    )
    return [key.split("\n")[1] for key in keys]


async def test_columns_show_how_methods_rank(either_playground: Playground, open_page: OpenPage) -> None:
    playground = either_playground
    page = await open_page(f"{playground.gateway}/_ttc/ui")
    await page.get_by_label("Index", exact=True).fill(playground.index)
    await page.get_by_label("Index", exact=True).press("Enter")
    await expect(page.get_by_label("Index", exact=True)).to_have_value(playground.index)
    await page.get_by_label("Query", exact=True).fill(QUERY)
    await page.get_by_role("button", name="Add a column").click()
    offered = await page.get_by_label("Method of column 3").locator("option").all_inner_texts()
    assert offered[:7] == ["bm25", "blend", "hybrid", "spectral", "maxsim", "dense", "All methods"]
    assert len(offered) == len(set(offered)) > 20
    await page.get_by_label("Method of column 3").select_option("spectral")
    await page.get_by_label("Parameters of column 3").fill('{"scales": [1, ')
    await page.get_by_role("button", name="Search").click()
    await expect(page.get_by_text("A JSON object, as in")).to_be_visible()
    await page.get_by_label("Parameters of column 3").fill('{"scales": [1, 3]}')
    await page.get_by_role("button", name="Search").click()
    await expect(page.locator(".column .hit")).to_have_count(30)
    for column, method in enumerate(("bm25", "blend", "spectral")):
        section = {} if method == "bm25" else {"method": method}
        params = {"params": {"scales": [1, 3]}} if method == "spectral" else {}
        body = {"query": {"multi_match": {"query": QUERY, "fields": ["title", "text"], "tie_breaker": 0.5}}, "size": 10}
        rescore = {"rescore": {"window_size": 100, "ttc": section | params}} if section else {}
        assert (
            await ids(page, column)
            == call(playground.gateway, "POST", f"/{playground.index}/_search", body | rescore).ids
        )
    both = set(await ids(page, 0)) & set(await ids(page, 1)), set(await ids(page, 1)) & set(await ids(page, 2))
    await expect(page.locator("svg.moves path")).to_have_count(sum(map(len, both)))
    assert await page.locator(".column").nth(1).locator(".hit mark").count() == 10
    await expect(page.locator(".column").nth(1).locator(".took")).to_have_attribute("title", re.compile(r"score \d"))

    again = await open_page(page.url)
    await expect(again.locator(".column .hit")).to_have_count(30)
    assert [await ids(again, column) for column in range(3)] == [await ids(page, column) for column in range(3)]
    await expect(again.get_by_label("Parameters of column 3")).to_have_value('{"scales":[1,3]}')


async def test_a_column_tells_why_a_document_is_not_in_it(playground: Playground, open_page: OpenPage) -> None:
    page = await open_page(playground.search("which cat drinks milk?"))
    await expect(page.locator(".column .hit")).to_have_count(20)
    await page.get_by_role("button", name="Why not?").click()  # one: not of bm25
    missing = set(await ids(page, 0)) - set(await ids(page, 1))
    assert set(await page.locator("dialog option").evaluate_all("all => all.map(one => one.value)")) == missing
    for name, words in (("d50", r"blend ranks it \d+ of \d+"), ("nowhere", r"\[nowhere\]")):
        await page.get_by_label("Id of a document").fill(name)
        await page.get_by_role("button", name="Explain").click()
        await expect(page.locator("dialog")).to_contain_text(re.compile(words))
        await expect(page.locator("dialog tbody tr")).to_have_count(6 if name == "d50" else 0)
        assert await faults_of_accessibility(page) == []


async def test_the_request_can_be_sent_by_other_clients(playground: Playground, open_page: OpenPage) -> None:
    page = await open_page(playground.search('what\'s a cat that "drinks" milk?'))
    await expect(page.locator(".column .hit")).to_have_count(20)
    expected = await ids(page, 1)
    await page.locator(".column").nth(1).get_by_role("button", name="Request").click()
    code = page.locator("dialog pre")
    await expect(code).to_contain_text("curl -s")
    shell = ["sh", "-c", await code.inner_text()]
    sent = await asyncio.to_thread(subprocess.run, shell, capture_output=True, timeout=60)
    assert [hit["_id"] for hit in json.loads(sent.stdout)["hits"]["hits"]] == expected, sent.stderr
    for client in ("Python, elasticsearch", "Python, opensearch-py"):
        await page.get_by_role("button", name=client).click()
        command = [sys.executable, "-c", await code.inner_text()]
        ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert [line.split()[1] for line in ended.stdout.splitlines()] == expected, ended.stderr
    await page.get_by_role("button", name="JSON").click()
    body = json.loads(await code.inner_text())
    assert call(playground.gateway, "POST", f"/{playground.index}/_search", body).ids == expected


async def test_markup_in_documents_is_text(playground: Playground, open_page: OpenPage) -> None:
    page = await open_page(playground.search(f"peacock shed {HOSTILE}"))
    for column in range(2):
        first = page.locator(".column").nth(column).locator(".hit").first
        await expect(first).to_contain_text("<script>window.hacked = true</script>")
    await page.locator(".column").nth(1).locator(".hit").first.click()
    await expect(page.locator("dialog")).to_contain_text("<img src=x onerror=")
    assert await page.locator("#app img, #app script").count() == 0
    assert await page.evaluate("window.hacked") is None


async def test_credentials_are_asked_for_and_kept_in_memory_only(
    playground: Playground, encoder: Encoder, open_page: OpenPage
) -> None:
    def guarded(request: Passed) -> Reply | None:
        if request.headers.get("authorization") == "Basic amFuZTpww6Q=":  # jane:pä
            return None
        refused = json.dumps({"error": {"type": "security_exception", "reason": "who are you?"}, "status": 401})
        headers = {"content-type": "application/json", "www-authenticate": 'Basic realm="security"'}
        return Reply(401, headers, refused.encode())

    with (
        relay(playground.engine) as engine,
        gateway_with_page(engine.url, encoder, admin_token="open sesame") as gateway,
    ):
        engine.before = guarded
        page = await open_page(playground.search(QUERY).replace(playground.gateway, gateway))
        await page.get_by_label("Token of the gateway").fill("open sesame")
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_label("User name", exact=True).fill("jane")
        await page.get_by_label("Password", exact=True).fill("wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_text("These credentials were refused.")).to_be_visible()
        await page.get_by_label("User name", exact=True).fill("jane")
        await page.get_by_label("Password", exact=True).fill("pä")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator(".column .hit")).to_have_count(20)
        assert await page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        assert "open sesame" not in {value for one in engine.passed for value in one.headers.values()}
        await page.reload()
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_text("the token is missing or wrong")).to_be_visible()


async def test_an_index_without_features(playground: Playground, open_page: OpenPage) -> None:
    name = f"test-plain-{uuid.uuid4().hex[:8]}"
    for number, (sort, stock) in enumerate((("dairy", True), ("dairy", False), ("drink", True))):
        document = {"body": "A cat that drinks milk.", "kind": sort, "stock": stock, "price": number}
        call(playground.engine, "PUT", f"/{name}/_doc/{number}?refresh=true", document)
    try:
        page = await open_page(playground.search("milk", index=name))
        bm25, blend = page.locator(".column").nth(0), page.locator(".column").nth(1)
        await expect(bm25.locator(".hit")).to_have_count(3)
        await expect(bm25.locator("mark").first).to_have_text("milk")
        await expect(blend.get_by_role("note")).to_contain_text("es-ttc attach")
        kind, price, fields = (
            page.locator(".menu", has=page.locator("summary", has_text=name)) for name in ("kind", "price", "Fields")
        )
        await kind.locator("summary").click()
        await kind.get_by_label("dairy").check()
        await expect(bm25.locator(".hit")).to_have_count(2)
        await expect(kind.locator("small")).to_have_text(["2", "1"])
        await price.locator("summary").click()
        await price.get_by_label("from").fill("1")
        await price.get_by_label("from").press("Enter")
        await expect(blend.locator(".hit")).to_have_count(1)
        await fields.locator("summary").click()
        await fields.get_by_label("stock").check()
        await expect(blend.locator(".hit .values")).to_have_text("stock false")
        assert await faults_of_accessibility(page) == []
        await page.get_by_role("button", name="Clear").click()
        await expect(bm25.locator(".hit")).to_have_count(3)
        await bm25.locator(".hit").first.click()
        await expect(page.locator("dialog")).to_contain_text("A cat that drinks milk.")
        page = await open_page(playground.search("milk", index="test-no-such-index"))
        await expect(page.get_by_role("alert")).to_contain_text("no such index [test-no-such-index]")
    finally:
        call(playground.engine, "DELETE", f"/{name}")


async def test_an_attached_index_is_shown_with_its_evidence_by_an_alias(
    either_playground: Playground, encoder: Encoder, open_page: OpenPage, index_name: str
) -> None:
    engine = either_playground.engine
    lines = [line for one in corpus() for line in ({"index": {"_id": one.pop("_id")}}, one)]
    call(engine, "POST", f"/{index_name}/_bulk?refresh=true", lines)
    call(engine, "PUT", f"/{index_name}/_alias/{index_name}-alias")
    named = {"name": "The calf", "about": "An animal that drinks milk."}
    call(engine, "PUT", f"/{index_name}-other/_doc/calf?refresh=true", named)
    call(engine, "PUT", f"/{index_name}-other/_alias/{index_name}-both")
    call(engine, "PUT", f"/{index_name}/_alias/{index_name}-both")
    await attached(engine, index_name, IndexSpec(encoder.identity, text_fields=("title", "text")), encoder)
    await attached(engine, f"{index_name}-other", IndexSpec(encoder.identity, text_fields=("name", "about")), encoder)
    try:
        page = await open_page(either_playground.search(QUERY, index=f"{index_name}-both"))
        titles = page.locator(".column").nth(1).locator(".hit strong")
        await expect(titles).to_have_count(10)
        assert {"The calf", "The dog"} <= set(await titles.all_inner_texts())
        page = await open_page(either_playground.search(QUERY, index=f"{index_name}-alias"))
        blend = page.locator(".column").nth(1)
        first = blend.locator(".hit").first
        await expect(first.locator("strong")).to_have_text("The dog")
        await expect(first.locator("mark").first).to_contain_text("drinks milk")
        assert await blend.locator(".hit mark").count() == 10
        await first.click()
        for words in ("What each signal adds", "late interaction", "Query tokens", "greatest in the text"):
            await expect(page.locator("dialog")).to_contain_text(words)
    finally:
        call(engine, "DELETE", f"/ttc-*-{index_name}")


async def test_an_engine_that_dies_and_returns(playground: Playground, encoder: Encoder, open_page: OpenPage) -> None:
    dead = Reply(503, {"content-type": "text/plain"}, b"no engine here")

    with relay(playground.engine) as engine, gateway_with_page(engine.url, encoder) as gateway:
        page = await open_page(playground.search(QUERY).replace(playground.gateway, gateway))
        await expect(page.locator(".column .hit")).to_have_count(20)
        engine.before = lambda _: dead
        await page.get_by_role("button", name="Search").click()
        await expect(page.get_by_role("alert").first).to_contain_text("no engine here")
        await page.reload()
        await expect(page.locator(".trouble")).to_contain_text("no engine here")
        engine.before = lambda _: None
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".column .hit")).to_have_count(20)
    await page.get_by_role("button", name="Search").click()
    await expect(page.get_by_text("the gateway does not answer").first).to_be_visible()


async def test_by_keyboard_alone(playground: Playground, open_page: OpenPage) -> None:
    page = await open_page(f"{playground.gateway}/_ttc/ui/#/search?index={playground.index}")
    await expect(page.get_by_label("Index", exact=True)).to_have_value(playground.index)
    await page.keyboard.press("/")
    await page.keyboard.type(QUERY)
    await page.keyboard.press("Enter")
    await expect(page.locator(".column .hit")).to_have_count(20)
    focused = page.locator(":focus")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await expect(focused).to_have_attribute("data-rank", "2")
    key = await focused.get_attribute("data-key")
    await page.keyboard.press("ArrowRight")
    beside = (await ids(page, 1)).index(key.split("\n")[1]) if key and key.split("\n")[1] in await ids(page, 1) else 1
    await expect(focused).to_have_attribute("data-rank", str(beside + 1))
    assert await focused.evaluate("e => e.closest('.column').ariaLabel") == "blend"
    assert await focused.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("milk")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(focused).to_have_attribute("data-rank", str(beside + 1))
    await page.keyboard.press("End")
    await expect(focused).to_have_attribute("data-rank", "10")


@pytest.mark.parametrize("width", [360, 1600])
async def test_nothing_is_cut_off_or_out_of_reach(playground: Playground, open_page: OpenPage, width: int) -> None:
    scheme = "dark" if width == 360 else "light"
    page = await open_page(playground.search(QUERY, '["bm25","hybrid","blend","nnn"]'), width, color_scheme=scheme)
    shown = page.locator(".column:visible")
    await expect(shown).to_have_count(1 if width == 360 else 4)
    await expect(shown.first.locator(".hit")).to_have_count(10)
    if width == 360:
        await page.get_by_role("button", name="hybrid", exact=True).click()
        await expect(shown).to_have_attribute("aria-label", "hybrid")
    assert await page.evaluate("document.documentElement.scrollWidth") == width
    assert await faults_of_accessibility(page) == []
    await shown.first.get_by_role("button", name="Request").click()
    assert await faults_of_accessibility(page) == []
    await page.keyboard.press("Escape")
    await shown.first.locator(".hit").first.click()
    await expect(page.get_by_role("dialog")).to_contain_text("milk")
    assert await page.evaluate("document.documentElement.scrollWidth") == width
    assert await faults_of_accessibility(page) == []
