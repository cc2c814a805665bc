"""A lock that allows one build of a graph at a time: a build increases a counter in the graph's mapping until it ends.

Whether a build still runs is decided by watching its counter for a while. So no clocks are compared, and a killed build
blocks others for no longer than that.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress

from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.index.mappings.graph import GraphMeta, graph_body, new_graph_name
from es_ttc.reranking.index_graph.store import graphs_of, save, serving_graph

logger = logging.getLogger(__name__)

_BEAT_SECONDS = 1.0
_WATCHED_SECONDS = 5.0  # time without a heartbeat after which a build counts as killed
_LOOK_SECONDS = 0.5
_SETTLING_SECONDS = 0.5  # longer than the time between reading the graphs and writing a new name


async def acquire_build_lock(engine: Engine, meta: GraphMeta) -> tuple[str, GraphMeta, list[str]]:
    """Resume a stopped build with the same parameters, or begin one; return name, metadata, abandoned graphs' names."""
    left = await _abandoned_graphs(engine, meta.source)
    ours = meta.model_copy(update={"owner": secrets.token_hex(8)})
    name = next((name for name, found in left.items() if found.same_as(meta)), None)
    if name is None:
        name = new_graph_name(meta.source)
        await engine.create_index(name, graph_body(ours))
        begun = True
    else:
        await save(engine, name, ours)
        begun = False
    await asyncio.sleep(_SETTLING_SECONDS)
    graphs = await graphs_of(engine, meta.source)
    others = [other for other, found in graphs.items() if other not in (name, *left) and not found.ready]
    mine = name in graphs and graphs[name].owner == ours.owner
    # Both builds see each other by now: the one with the lesser name continues.
    if not mine or any(other < name for other in others):
        if begun and mine:
            await engine.delete_index(name)
        raise _running(meta.source)
    return name, ours, [other for other in left if other != name]


@asynccontextmanager
async def heartbeat(engine: Engine, name: str, meta: GraphMeta) -> AsyncIterator[None]:
    """Increase the counter of a build while the body runs; release the lock if the body fails or is stopped."""

    async def beat() -> None:
        count = 0
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            count += 1
            try:
                await save(engine, name, meta.model_copy(update={"beats": count}))
            except EngineError as error:  # a lasting failure occurs in the build's own calls too
                logger.warning("the heartbeat of a build could not be written: %s", error)

    task = asyncio.create_task(beat())
    try:
        yield
    except BaseException:
        await _ended(task)
        with suppress(EngineError):
            await save(engine, name, meta.model_copy(update={"owner": ""}))
        raise
    await _ended(task)


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def require_ours(engine: Engine, name: str, meta: GraphMeta) -> None:
    """Raise an error if a graph no longer belongs to this build."""
    found = (await graphs_of(engine, meta.source)).get(name)
    if found is None or found.owner != meta.owner:
        raise InvalidRequest(
            f"the graph of [{meta.source}] that was being built was deleted or taken up by another build: run `es-ttc "
            f"graph build {meta.source}` again when that has ended"
        )


async def _abandoned_graphs(engine: Engine, source: str) -> dict[str, GraphMeta]:
    """Return the abandoned unfinished graphs."""
    first = await _unfinished(engine, source)
    waited = 0.0
    while any(found.owner for found in first.values()) and waited < _WATCHED_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
        now = await _unfinished(engine, source)
        if {name: found.sign for name, found in now.items()} != {name: found.sign for name, found in first.items()}:
            raise _running(source)  # or the build has just ended
    return first


async def _unfinished(engine: Engine, source: str) -> dict[str, GraphMeta]:
    serving = await serving_graph(engine, source)
    found = await graphs_of(engine, source)
    return {name: meta for name, meta in found.items() if not meta.ready and (serving is None or serving[0] != name)}


def _running(source: str) -> InvalidRequest:
    return InvalidRequest(
        f"another build of the graph of [{source}] is running: wait until it has ended, or stop it and run this again"
    )


def deletable(serving: str | None, left: Collection[str], graph: str) -> list[str]:
    """Return the graphs that a finished one replaces: the previous one, and abandoned ones."""
    return [name for name in dict.fromkeys([*left, *([serving] if serving else [])]) if name != graph]
