"""Remove the features of an index: everything that es-ttc has created for it."""

from dataclasses import dataclass

from es_ttc.engine.protocol import Engine, delete_if_there
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.indices import Index, sides_of
from es_ttc.index.mappings.spec import refuse_in_index_features


@dataclass(frozen=True, slots=True)
class AttachedObjects:
    """The objects that es-ttc has created for one index."""

    index: str
    sides: tuple[str, ...]


async def traces_of(engine: Engine, name: str) -> list[AttachedObjects]:
    """Return the objects to remove for each index behind a name."""
    try:
        sources = await Index.behind(engine, name)
    except InvalidRequest:
        sides = await _sides(engine, name)
        if not sides:
            raise
        return [AttachedObjects(name, sides)]
    return [await _traces(engine, source) for source in sources]


async def detach(engine: Engine, traces: AttachedObjects) -> None:
    """Remove all objects; it may be stopped at any time and run again."""
    for side in traces.sides:
        await delete_if_there(engine, side)  # the answer to an earlier run's request may have been lost


async def _traces(engine: Engine, source: Index) -> AttachedObjects:
    if source.meta:
        refuse_in_index_features(source.index, source.meta)
        raise InvalidRequest(
            f"index [{source.index}] was made by es-ttc, features and all: `es-ttc index delete` deletes it"
        )
    return AttachedObjects(source.index, await _sides(engine, source.index))


async def _sides(engine: Engine, source: str) -> tuple[str, ...]:
    return tuple(side.index for side in await sides_of(engine, source))
