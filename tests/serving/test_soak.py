"""A short form of benchmarks/soak.py: mixed traffic of many clients, no error, nothing left out."""

import asyncio

from benchmarks.served import fill, gateway, opened
from benchmarks.soak import MIX, Report, soak


def test_many_clients_at_the_same_time_get_what_they_ask_for(opensearch_url: str, index_name: str) -> None:
    groups = 2
    with gateway(opensearch_url, feature_cache_mb=8, scoring_timeout_ms=60_000) as running:

        async def run() -> Report:
            async with opened(opensearch_url) as engine:
                await fill(engine, index_name, groups=groups)
            return await soak(running, index_name, clients=16, seconds=4.0, groups=groups)

        report = asyncio.run(run())
    assert report.errors == []
    assert report.times.keys() == MIX.keys()
    assert len(report.memory) > 10
