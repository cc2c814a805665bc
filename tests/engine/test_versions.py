"""Product and version: what is read from an engine, and what follows from it."""

from typing import Any

import pytest
from aiohttp import web

from es_ttc.engine import versions
from es_ttc.engine.connect import connect
from es_ttc.engine.versions import RANK_VECTORS, SHARD_DOC_SORT, EngineVersion, Product, VersionedFeature, identify
from es_ttc.errors import EngineError, UnsupportedEngine
from es_ttc.settings import EngineSettings
from tests.support.servers import server_of


def info_of(product: str, number: str) -> dict[str, Any]:
    version = {"number": number} | ({"distribution": "opensearch"} if product == "opensearch" else {})
    return {"version": version, "tagline": "You Know, for Search" if product == "elasticsearch" else "The project"}


@pytest.mark.parametrize(
    ("product", "number", "numbers"),
    [
        ("opensearch", "2.19.1", (2, 19, 1)),
        ("elasticsearch", "9.4.3-SNAPSHOT", (9, 4, 3)),
        ("opensearch", "3.0.0-beta1", (3, 0, 0)),
    ],
)
def test_product_and_version_are_identified(product: Product, number: str, numbers: tuple[int, ...]) -> None:
    assert identify(info_of(product, number), "http://engine") == EngineVersion(product, numbers)


@pytest.mark.parametrize("info", [{}, [], "hello", {"version": {"number": "1"}}, {"tagline": "You Know, for Cash"}])
def test_another_program_is_neither_and_the_oldest_versions_are_named(info: Any) -> None:
    with pytest.raises(EngineError, match=r"\[http://x\]"):
        identify(info, "http://x")


@pytest.mark.parametrize(
    ("version", "too_old", "unmaintained"),
    [
        (EngineVersion("opensearch", (2, 18, 0)), True, True),
        (EngineVersion("opensearch", (2, 19, 0)), False, False),
        (EngineVersion("opensearch", (3, 8, 0)), False, True),
        (EngineVersion("opensearch", (3, 9, 0)), False, False),
        (EngineVersion("elasticsearch", (7, 17, 15)), True, True),
        (EngineVersion("elasticsearch", (8, 12, 2)), True, True),
        (EngineVersion("elasticsearch", (8, 13, 0)), False, True),
        (EngineVersion("elasticsearch", (8, 19, 13)), False, False),
        (EngineVersion("elasticsearch", (10, 0, 0)), False, False),
    ],
)
def test_which_versions_are_supported(version: EngineVersion, too_old: bool, unmaintained: bool) -> None:
    assert (version.too_old, version.unmaintained) == (too_old, unmaintained)
    refusal = version.refusal("the engine")
    if not too_old:
        assert refusal is None
        return
    assert isinstance(refusal, UnsupportedEngine)
    assert str(refusal) == (
        f"the engine runs {version}, which is too old: OpenSearch 2.19 or Elasticsearch 8.13 or newer is needed"
    )


@pytest.mark.parametrize("feature", versions.ENGINE_FEATURES, ids=lambda feature: feature.what)
def test_a_feature_begins_with_a_version(feature: VersionedFeature) -> None:
    for product in versions.OLDEST:
        since = feature.since.get(product)
        if since is None:
            assert not EngineVersion(product, (99,)).has(feature)
        else:
            assert EngineVersion(product, since).has(feature)
            assert not EngineVersion(product, (*since[:-1], since[-1] - 1, 99)).has(feature)


def test_products_differ() -> None:
    assert EngineVersion("elasticsearch", (8, 13, 4)).has(SHARD_DOC_SORT)
    assert not EngineVersion("opensearch", (3, 2, 0)).has(SHARD_DOC_SORT)
    assert not EngineVersion("opensearch", (9, 0, 0)).has(RANK_VECTORS)


@pytest.mark.parametrize(
    ("response", "found"),
    [
        ((200, "text/html", "<html>"), "with something that is not JSON"),
        ((404, "text/html", "<html>"), "with 404"),
        ((301, "text/html", ""), "with 301"),
        ((200, "application/json", '{"name": "other", "version": {"number": "8"}}'), "with [{'name': 'other', 'vers"),
        ((200, "application/json", "[]"), "with [[]]"),
    ],
)
async def test_another_program_is_named_by_what_it_answers(response: tuple[int, str, str], found: str) -> None:
    status, kind, text = response

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, content_type=kind, text=text)

    async with server_of(answer) as url:
        with pytest.raises(EngineError) as refused:
            await connect(EngineSettings(engine=url))
    assert str(refused.value).startswith(f"[{url}] is neither Elasticsearch nor OpenSearch: it answers GET / {found}")
    assert str(refused.value).endswith("give the address of an engine, OpenSearch 2.19 or Elasticsearch 8.13 or newer")


def test_serverless_is_known_by_its_flavor_and_newer_than_its_number() -> None:
    info = {"version": {"number": "8.11.0", "build_flavor": "serverless"}, "tagline": "You Know, for Search"}
    found = identify(info, "http://engine")
    assert (str(found), found.too_old, found.unmaintained) == ("Elasticsearch Serverless", False, False)
    assert found.has(RANK_VECTORS)
    assert found.accepts_media_types_of(9)
    assert not EngineVersion("elasticsearch", (8, 19, 13)).accepts_media_types_of(9)
