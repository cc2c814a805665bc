"""Find where an index's features are stored, and fill them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.fill import FillResult, ReportFill, fill
from es_ttc.index.attach.own_index import OwnIndexTarget
from es_ttc.index.attach.side_index import SideIndexTarget
from es_ttc.index.attach.source_checks import require_readable
from es_ttc.index.attach.target import Target
from es_ttc.index.mappings.attached import CHECKPOINT, FAILED, ON_DEMAND, REASON
from es_ttc.index.mappings.contents import IndexCounts, contents
from es_ttc.index.mappings.fields import EMPTY, READY
from es_ttc.index.mappings.indices import Index, several
from es_ttc.index.mappings.spec import STATE, IndexSpec

_MAX_FAILURES = 5


@dataclass(frozen=True, slots=True)
class FeatureLocation:
    """The index in which the features of an index are stored: a side index, or the index itself."""

    source: Index
    holder: Index
    spec: IndexSpec

    @classmethod
    async def of(cls, engine: Engine, source: Index) -> Self | None:
        """Return where the features of an index are stored; None if it has none."""
        holder = source if source.meta else await source.serving_side(engine)
        return None if holder is None else cls(source, holder, holder.spec)

    @property
    def index(self) -> str:
        """The name of the index with the features."""
        return self.holder.index

    @property
    def side(self) -> bool:
        """Whether it is a side index."""
        return self.index != self.source.index

    @property
    def on_demand(self) -> bool:
        """Whether gateways encode the documents that searches find without features."""
        return self.side and bool(self.holder.meta.get(ON_DEMAND))


@dataclass(frozen=True, slots=True)
class Indices:
    """The indices behind a name, an alias or a data stream, and where the features of each are stored."""

    name: str
    sources: Sequence[Index]
    locations: Sequence[FeatureLocation | None]  # of each source; None where it has no features

    @classmethod
    async def behind(cls, engine: Engine, name: str) -> Self:
        """Return the indices behind a name; an error if there is none."""
        sources = await Index.behind(engine, name)
        return cls(name, sources, [await FeatureLocation.of(engine, source) for source in sources])

    def features(self) -> list[FeatureLocation]:
        """Return where the features of every index are stored; an error if one has none."""
        return [_required(source, location) for source, location in zip(self.sources, self.locations, strict=True)]

    def only(self) -> FeatureLocation:
        """Return where the features of the only index are stored."""
        if len(self.sources) != 1:
            raise several(self.name, [source.index for source in self.sources])
        return self.features()[0]

    def shared_spec(self) -> IndexSpec:
        """Return the spec of the features that searches read; an error if text fields or encoders differ.

        An index without features is left out, such as the newest one of a data stream, unless all of them are.
        """
        specs = [location.spec for location in self.present or self.features()]
        if len({(spec.text_fields, spec.encoder.key) for spec in specs}) > 1:
            raise InvalidRequest(
                f"the indices of [{self.name}] have different text fields or encoders: name one of them"
            )
        return specs[0]

    @property
    def present(self) -> list[FeatureLocation]:
        """The locations of those indices that have features."""
        return [location for location in self.locations if location is not None]


async def contents_of(engine: Engine, held: FeatureLocation) -> IndexCounts:
    """Count the documents of a source index in its side index."""
    found = await contents(engine, held.index, held.spec)
    states = {state: count for state, count in found.states.items() if state != CHECKPOINT}
    documents = await engine.count(held.source.index)
    done = states.get(READY, 0) + states.get(EMPTY, 0)
    return replace(found, documents=documents, states=states, lacking=max(0, documents - done))


async def encoded_counts(engine: Engine, held: FeatureLocation) -> tuple[int, int]:
    """Count the documents of a source index, and those in its side index that need no encoding."""
    done = {"terms": {STATE: [READY, EMPTY]}}
    documents, encoded = await asyncio.gather(engine.count(held.source.index), engine.count(held.index, done))
    return documents, min(documents, encoded)


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


async def fill_attached(
    engine: Engine, name: str, encoder: Encoder, *, everything: bool = False, report: ReportFill | None = None
) -> list[FillResult]:
    """Update the features of every index behind a name, one after the other."""
    return await fill_indices(engine, await Indices.behind(engine, name), encoder, everything=everything, report=report)


async def fill_indices(
    engine: Engine, indices: Indices, encoder: Encoder, *, everything: bool = False, report: ReportFill | None = None
) -> list[FillResult]:
    """Update the features of indices; see :func:`fill_attached`."""
    filled = []
    for source, location in zip(indices.sources, indices.locations, strict=True):
        if location is None:
            raise InvalidRequest(
                f"index [{source.index}] has no features yet, or an attach was not finished: run `es-ttc attach` for "
                "the name that you have attached"
            )
        await require_readable(engine, source, location.spec.text_fields)
        target = target_of(engine, location)
        filled.append(await fill(engine, source, target, encoder, everything=everything, report=report))
    return filled


def target_of(engine: Engine, held: FeatureLocation) -> Target:
    """Return the target of a fill for an index."""
    if held.side:
        return SideIndexTarget(engine, held.source, held.index, held.spec)
    return OwnIndexTarget(engine, held.source, held.spec)


def _required(source: Index, location: FeatureLocation | None) -> FeatureLocation:
    if location is None:
        raise InvalidRequest(
            f"index [{source.index}] has no features: add them with `es-ttc attach {source.index}`, or make "
            "another index with `es-ttc index create`"
        )
    return location
