"""The section inside the engine: plugin against gateway against no rescoring. Starts a node of its own.

    mvn -f plugin package
    python -m benchmarks.plugin [--seconds 10]

All three are asked in turns in one run: the same node, the same gateway process (it scores for both), the same window,
whose features are in its memory.
"""

import argparse
import asyncio
import secrets
from typing import Any

from pydantic import SecretStr

from benchmarks.common import heading, table
from benchmarks.served import (
    GROUPS,
    TOKENS,
    WINDOW,
    Client,
    answered,
    fill,
    free_port,
    gateway,
    opened,
    percentiles,
    query,
)
from es_ttc.engine.node import process
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.engine.node.plugin import Plugin
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.settings import Settings

INDEX = "benchmark-plugin"
CLIENTS = (1, 16)
TURNS = 4
WARM_UP_SECONDS = 8.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    arguments = parser.parse_args()
    token, port = secrets.token_hex(16), free_port()
    plugin = Plugin.of(
        None, "opensearch", f"http://127.0.0.1:{port}", SecretStr(token), timeout="30s", max_timeout="30s"
    )
    spec = NodeSpec(cache_dir=Settings().cache_dir, name="benchmark-plugin", port=0, owned=True, keep_data=False)
    with process.start(spec, distribution=OpenSearchDistribution(plugin)) as node:
        asyncio.run(_fill(node.url))
        told: dict[str, Any] = {"port": port, "sidecar_token": token, "default_timeout_ms": 30_000}
        with gateway(node.url, **told) as running:
            _report(node.url, running.url, arguments.seconds)


async def _fill(url: str) -> None:
    async with opened(url) as engine:
        await fill(engine, INDEX)


def _report(engine: str, through: str, seconds: float) -> None:
    plain, ours = query(0, rescore=False), query(0, rescore=True)
    ways = {"no rescoring": (engine, plain), "gateway": (through, ours), "plugin": (engine, ours)}
    for url, body in ways.values():
        asyncio.run(answered(url, INDEX, body, connections=4, seconds=WARM_UP_SECONDS))
    before = _counted(engine)
    rows = []
    for clients in CLIENTS:
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(TURNS):
            for way, (url, body) in ways.items():
                share = seconds / TURNS
                times[way] += asyncio.run(answered(url, INDEX, body, connections=clients, seconds=share))
        base, _ = percentiles(times["no rescoring"])
        for way, measured in times.items():
            middle, late = percentiles(measured)
            rate = len(measured) / seconds
            rows.append((clients, way, f"{middle:.1f}", f"{middle - base:.1f}", f"{late:.1f}", f"{rate:.0f}"))
    after = _counted(engine)
    windows = after["windows"] - before["windows"]
    assert after["applied"] - before["applied"] == windows, after
    trips = (after["round_trips"] - before["round_trips"]) / windows
    sent = (after["bytes_sent"] - before["bytes_sent"]) / windows
    data = f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens x 384, int8, one shard, OpenSearch 3.5.0, loopback"
    print(heading("Plugin", data=data, packages=("uvicorn", "starlette", "cbor2", "numpy")))
    columns = ("clients", f"spectral, window {WINDOW}, warm", "p50 ms", "added ms", "p95 ms", "requests/s")
    print(table(columns, rows))
    print(
        f"{windows:,} windows through the plugin, all rescored: {trips:.2f} round trips and {sent:,.0f} bytes each.\n"
    )


def _counted(engine: str) -> dict[str, int]:
    with Client(engine) as client:
        counted: dict[str, int] = client.get("/_plugins/_ttc/stats")["ttc"]
        return counted


if __name__ == "__main__":
    main()
