"""The gateway's small parts: cache, pool, JSON, gzip bodies, headers."""

import asyncio
import gzip
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.common.caches import LruCache
from es_ttc.errors import InvalidRequest, RequestTooLarge
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import callers, end_to_end, forwarded
from es_ttc.serving.http.limits import decompressed
from es_ttc.serving.pool import BoundedPool


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 6)), max_size=60))
def test_the_cache_never_weighs_more_than_it_may(puts: list[tuple[int, int]]) -> None:
    cache: LruCache[int, str] = LruCache(10)
    held: dict[int, int] = {}
    for key, weight in puts:
        cache.put(key, f"{key}:{weight}", weight)
        held[key] = weight
        assert cache.weight <= 10
        assert cache.get(key) == f"{key}:{weight}"
    kept = [key for key in held if cache.get(key) is not None]
    assert cache.weight == sum(held[key] for key in kept)


def test_the_cache_drops_what_was_used_longest_ago() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    cache.put("huge", 4, 3)
    assert cache.get("huge") is None
    assert len(cache) == 2


async def test_late_work_does_not_hold_the_loop() -> None:
    pool = BoundedPool("testing", threads=1, queue=0)
    release = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pool.run(release.wait, 10)
    release.set()
    pool.close()


@pytest.mark.parametrize(
    "raw",
    [
        b'{"n":123456789012345678901234567890,"m":-18446744073709551616}',
        b'{"s":"\\ud800"}',
        b'{"x":0.1,"y":[1,2,{"z":null}],"t":"\xc3\xa9"}',
        b"[18446744073709551615]",
    ],
)
def test_json_survives_whatever_a_document_may_hold(raw: bytes) -> None:
    assert jsonio.dumps(jsonio.loads_json(raw)) == raw


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":NaN}', b"[Infinity]", b"[" * 100_000, b"\xff\xfe"])
def test_decode_invalid_json_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whichever of its kinds
        jsonio.loads_json(raw)


def test_gzip_bodies_are_bounded_and_checked() -> None:
    assert decompressed(gzip.compress(b"abc"), "gzip", 10) == b"abc"
    assert decompressed(b"abc", "", 10) == b"abc"
    assert decompressed(b"abc", "zstd", 10) is None
    with pytest.raises(RequestTooLarge):
        decompressed(gzip.compress(b"0" * 10_000_000), "gzip", 1000)
    with pytest.raises(InvalidRequest):
        decompressed(b"no gzip", "gzip", 1000)
    with pytest.raises(InvalidRequest):
        decompressed(gzip.compress(b"abc" * 100)[:-12], "gzip", 1000)


def test_hop_by_hop_headers_stay_here_and_credentials_go_on() -> None:
    headers = [
        (b"host", b"gateway"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"te", b"trailers"),
        (b"authorization", b"ApiKey secret"),
        (b"es-security-runas-user", b"ann"),
        (b"cookie", b"sid=1"),
        (b"accept-encoding", b"gzip"),
        (b"content-type", b"application/json"),
    ]
    who = [(b"authorization", b"ApiKey secret"), (b"es-security-runas-user", b"ann"), (b"cookie", b"sid=1")]
    assert forwarded(headers) == [*who, (b"accept-encoding", b"gzip"), (b"content-type", b"application/json")]
    assert callers(headers) == who
    assert (b"host", b"gateway") in end_to_end(headers)
