"""How the page's files are served, with which settings, and by which commands."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from es_ttc.cli.app import run
from es_ttc.cli.serve import warnings
from es_ttc.encoders.base import Encoder
from es_ttc.playground import pages
from es_ttc.playground.pages import ASSETS, LOCK, VENDOR, library_files, read_assets
from es_ttc.settings import GatewaySettings
from release import vendor
from tests.cli.test_serve import serving
from tests.playground.conftest import VENDORED, Playground, gateway_with_page, unavailable
from tests.serving.client import call

PAGE = "/_ttc/ui/"
POLICY = (
    "default-src 'self'; style-src 'self'; script-src 'self'; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; form-action 'none'"
)
MAX_BYTES = 150_000
"""Of the whole page, uncompressed."""

MAX_SCRIPT_LINES = 2_030
"""Of its own modules, as prettier formats them."""


def test_files_are_sent_with_a_strict_policy_and_only_once(playground: Playground) -> None:
    if not VENDORED:
        unavailable("the page's libraries are not there")
    size = 0
    for name, asset in read_assets().items():
        reply = call(playground.gateway, "GET", f"{PAGE}{name}")
        assert (reply.status, reply.body) == (200, asset.body)
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        again = call(playground.gateway, "GET", f"{PAGE}{name}", headers={"if-none-match": reply.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        packed = call(playground.gateway, "GET", f"{PAGE}{name}", headers={"accept-encoding": "gzip, br"})
        assert gzip.decompress(packed.body) == asset.body
        size += len(reply.body)
    assert size < MAX_BYTES
    assert sum(len(module.read_text("utf-8").splitlines()) for module in ASSETS.glob("*.js")) < MAX_SCRIPT_LINES
    page = call(playground.gateway, "GET", PAGE)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"<script>" not in page.body
    assert call(playground.gateway, "GET", f"{PAGE}app.js").headers["content-type"] == "text/javascript; charset=utf-8"
    moved = call(playground.gateway, "GET", "/_ttc/ui")
    assert (moved.status, moved.headers["location"]) == (307, "ui/")
    for missing in ("nothing.js", "../pages.py", "%2e%2e/pages.py", "vendor/.lock"):
        assert call(playground.gateway, "GET", f"{PAGE}{missing}").status == 404


def test_the_page_is_off_unless_asked_for(opensearch_url: str, encoder: Encoder) -> None:
    with gateway_with_page(opensearch_url, encoder, ui=False) as gateway:
        assert call(gateway, "GET", PAGE).status == 404


def test_the_admin_token_is_not_asked_for_the_page_but_for_all_else(opensearch_url: str, encoder: Encoder) -> None:
    with gateway_with_page(opensearch_url, encoder, admin_token="secret") as gateway:
        assert call(gateway, "GET", "/_ttc/ui").status == 307
        assert call(gateway, "GET", PAGE).status == 200
        for other in ("/_ttc/", "/_ttc/uix", "/_ttc/jobs", "/_ttc/judgements/anything"):
            assert call(gateway, "GET", other).status == 401


def test_without_libraries_the_page_says_how_to_get_them(tmp_path: Path) -> None:
    for path in ASSETS.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assets = read_assets(tmp_path)
    assert b"python release/vendor.py" in assets["index.html"].body
    assert not any(name.endswith(".js") for name in assets)


def test_without_libraries_the_commands_say_so_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "ASSETS", tmp_path)
    assert run(["ui", "--no-browser"]) == 1
    assert "the page's libraries are not there: install npm" in capsys.readouterr().err
    settings = GatewaySettings(ui=True)
    [sentence] = warnings(settings, "http://127.0.0.1:9280", "http://127.0.0.1:9200", None, reachable=True)
    assert "python release/vendor.py" in sentence


def test_each_worker_process_serves_the_page(opensearch_url: str) -> None:
    with serving(opensearch_url, "--ui", "--workers", "2") as (_, said):
        assert said["ui"] == f"{said['url']}{PAGE}"
        assert {call(said["url"], "GET", PAGE).status for _ in range(20)} == {200}


def test_one_command_opens_the_page_of_an_index(playground: Playground) -> None:
    command = [sys.executable, "-m", "es_ttc", "ui", playground.index, "--engine", playground.engine, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            url, _, rest = address.partition(PAGE)
            assert rest == f"#/search?index={playground.index}"
            assert call(url, "GET", PAGE).status == 200
        finally:
            process.terminate()
            process.wait(30)


def test_vendored_libraries_are_those_of_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not VENDORED:
        unavailable("the page's libraries are not there")
    lock = json.loads(LOCK.read_text("utf-8"))
    for package in lock["packages"]:
        assert (ASSETS / VENDOR / package["licence_file"]["as"]).is_file()
    for name in library_files():
        imported = re.findall(r'from"([^"]+)"', (ASSETS / name).read_text("utf-8"))
        assert all((ASSETS / VENDOR / other).is_file() for other in imported)
    monkeypatch.setattr(vendor, "packed", lambda *_: tmp_path)
    monkeypatch.setattr(vendor, "contents", lambda *_: b"export const other = 1;")
    with pytest.raises(vendor.VendorError, match=r"preact 11\.2\.0: dist/preact\.mjs has the SHA-256 [0-9a-f]{64}"):
        vendor.fetch(lock, write_lock=False)
