"""Find where an index's features are stored, and fill them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.fill import FillResult, Report, fill
from es_ttc.index.attach.own_index import OwnIndexTarget
from es_ttc.index.attach.side_index import SideIndexTarget
from es_ttc.index.attach.source import sources_of
from es_ttc.index.attach.source_checks import require_readable
from es_ttc.index.attach.target import Target
from es_ttc.index.mappings.attached import CHECKPOINT, FAILED, REASON
from es_ttc.index.mappings.contents import IndexCounts, contents
from es_ttc.index.mappings.fields import EMPTY, READY
from es_ttc.index.mappings.index import several
from es_ttc.index.mappings.indices import Index, serving_side
from es_ttc.index.mappings.spec import STATE, IndexSpec

_MAX_FAILURES = 5


@dataclass(frozen=True, slots=True)
class FeatureLocation:
    """The index in which the features of an index are stored: a side index, or the index itself."""

    source: Index
    holder: Index
    spec: IndexSpec

    @property
    def index(self) -> str:
        """The name of the index with the features."""
        return self.holder.index

    @property
    def side(self) -> bool:
        """Whether it is a side index."""
        return self.index != self.source.index


Found = tuple[Index, FeatureLocation | None]  # an index, and where its features are stored; None if it has none


async def feature_location(engine: Engine, name: str) -> FeatureLocation:
    """Return where the features of one index are stored."""
    sources = await sources_of(engine, name)
    if len(sources) != 1:
        raise several(name, [source.index for source in sources])
    return await _holder(engine, sources[0])


async def feature_locations(engine: Engine, name: str) -> list[FeatureLocation]:
    """Return where the features of every index behind a name, an alias or a data stream are stored."""
    return [await _holder(engine, source) for source in await sources_of(engine, name)]


async def alike_locations(engine: Engine, name: str) -> list[FeatureLocation]:
    """Return where the features of the indices behind a name are stored, which have one form.

    An index without features is left out, such as the newest one of a data stream, unless all of them are.
    """
    located = [held for _, held in await found_behind(engine, name) if held is not None]
    located = located or await feature_locations(engine, name)
    if len({(one.spec.text_fields, one.spec.encoder.key) for one in located}) > 1:
        raise InvalidRequest(f"the indices of [{name}] have different text fields or encoders: name one of them")
    return located


async def contents_of(engine: Engine, held: FeatureLocation) -> IndexCounts:
    """Count the documents of a source index in its side index."""
    found = await contents(engine, held.index, held.spec)
    states = {state: count for state, count in found.states.items() if state != CHECKPOINT}
    documents = await engine.count(held.source.index)
    done = states.get(READY, 0) + states.get(EMPTY, 0)
    return replace(found, documents=documents, states=states, lacking=max(0, documents - done))


async def written_since_fill(engine: Engine, held: FeatureLocation) -> int:
    """Count the documents of a source index that were written since its side index was filled."""
    reached = await SideIndexTarget(engine, held.source, held.index, held.spec).load()
    found = await asyncio.gather(
        *(
            engine.search(
                held.source.index,
                {"query": {"range": {"_seq_no": {"gt": at}}}, "size": 0, "track_total_hits": True},
                preference=f"_shards:{shard}",
            )
            for shard, at in reached.items()
        )
    )
    return sum(int(one["hits"]["total"]["value"]) for one in found)


async def failures(engine: Engine, index: str) -> dict[str, str]:
    """Return a few of the documents that cannot have features, with the reasons."""
    body = {
        "query": {"term": {STATE: FAILED}},
        "size": _MAX_FAILURES,
        "stored_fields": [REASON],
        "track_total_hits": False,
    }
    answer = await engine.search(index, body)
    return {hit["_id"]: hit.get("fields", {}).get(REASON, [""])[0] for hit in answer["hits"]["hits"]}


async def held_by(engine: Engine, source: Index) -> FeatureLocation | None:
    """Return where the features of an index are stored; None if it has none."""
    if source.meta:
        return FeatureLocation(source, source, source.spec)
    side = await serving_side(engine, source.index)
    return None if side is None else FeatureLocation(source, side, side.spec)


async def found_behind(engine: Engine, name: str) -> list[Found]:
    """Return the indices behind a name, and where the features of each are stored."""
    return [(source, await held_by(engine, source)) for source in await sources_of(engine, name)]


async def fill_attached(
    engine: Engine,
    name: str,
    encoder: Encoder,
    *,
    everything: bool = False,
    report: Report | None = None,
) -> list[FillResult]:
    """Update the features of every index behind a name, one after the other."""
    return await fill_found(engine, await found_behind(engine, name), encoder, everything=everything, report=report)


async def fill_found(
    engine: Engine,
    found: Sequence[Found],
    encoder: Encoder,
    *,
    everything: bool = False,
    report: Report | None = None,
) -> list[FillResult]:
    """Update the features of indices, one after the other; see :func:`fill_attached`."""
    filled = []
    for source, held in found:
        if held is None:
            raise InvalidRequest(
                f"index [{source.index}] has no features yet, or an attach was not finished: run `es-ttc attach` for "
                "the name that you have attached"
            )
        await require_readable(engine, source, held.spec.text_fields)
        filled.append(
            await fill(engine, source, target_of(engine, held), encoder, everything=everything, report=report)
        )
    return filled


def target_of(engine: Engine, held: FeatureLocation) -> Target:
    """Return the target of a fill for an index."""
    if held.side:
        return SideIndexTarget(engine, held.source, held.index, held.spec)
    return OwnIndexTarget(engine, held.source, held.spec)


async def spec_of(engine: Engine, sources: Sequence[Index]) -> IndexSpec | None:
    """Return the spec of the first of some indices that has features; None if none has."""
    for source in sources:
        held = await held_by(engine, source)
        if held is not None:
            return held.spec
    return None


async def _holder(engine: Engine, source: Index) -> FeatureLocation:
    held = await held_by(engine, source)
    if held is None:
        raise InvalidRequest(
            f"index [{source.index}] carries nothing of es-ttc: add it with `es-ttc attach {source.index}`, or make "
            "another index with `es-ttc index create`"
        )
    return held
