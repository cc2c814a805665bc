"""Where an index's features are, and the fill that follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from es_ttc.attach.beside import Beside, serving_side
from es_ttc.attach.fill import Filled, FillOptions, Report, fill
from es_ttc.attach.inside import Inside
from es_ttc.attach.readable import require_readable, require_updatable
from es_ttc.attach.source import Source, sources_of
from es_ttc.attach.target import Target
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.mappings.attached import CHECKPOINT, FAILED, REASON
from es_ttc.mappings.contents import Contents, contents
from es_ttc.mappings.fields import EMPTY, READY
from es_ttc.mappings.spec import ROOT, STATE, VECTOR, IndexSpec

_SHOWN_FAILURES = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """The index that holds another one's features, or its own.

    Attributes:
        source: The index that is searched.
        index: The one with the features.
        spec: What it carries.
    """

    source: Source
    index: str
    spec: IndexSpec

    @property
    def side(self) -> bool:
        """Whether it is a side index."""
        return self.index != self.source.index

    @property
    def has_vectors(self) -> bool:
        """Whether the index that is searched has the vector field itself."""
        ours = self.source.mapping.get("properties", {}).get(ROOT, {}).get("properties", {})
        return not self.side and VECTOR.partition(".")[2] in ours


async def holder_of(engine: Engine, name: str) -> Holder:
    """Return where the features of one index are.

    Raises:
        InvalidRequest: The name stands for several indices, or for one without features.
    """
    sources = await sources_of(engine, name)
    if len(sources) != 1:
        names = ", ".join(source.index for source in sources)
        raise InvalidRequest(f"[{name}] stands for {len(sources)} indices ({names}): name one")
    return await _holder(engine, sources[0])


async def holders_of(engine: Engine, name: str) -> list[Holder]:
    """Return where the features of every index behind a name, an alias or a data stream are.

    Raises:
        InvalidRequest: There is none, or one of them has no features.
    """
    return [await _holder(engine, source) for source in await sources_of(engine, name)]


async def contents_of(engine: Engine, held: Holder) -> Contents:
    """Count what a side index has of its source's documents."""
    found = await contents(engine, held.index, held.spec)
    states = {state: count for state, count in found.states.items() if state != CHECKPOINT}
    documents = await engine.count(held.source.index)
    done = states.get(READY, 0) + states.get(EMPTY, 0)
    return replace(found, documents=documents, states=states, lacking=max(0, documents - done))


async def failures(engine: Engine, index: str) -> dict[str, str]:
    """Return a few of the documents that cannot have features, with the reasons."""
    body = {
        "query": {"term": {STATE: FAILED}},
        "size": _SHOWN_FAILURES,
        "stored_fields": [REASON],
        "track_total_hits": False,
    }
    answer = await engine.search(index, body)
    return {hit["_id"]: hit.get("fields", {}).get(REASON, [""])[0] for hit in answer["hits"]["hits"]}


async def target_of(engine: Engine, source: Source) -> Target:
    """Return where the features of an index are.

    Raises:
        InvalidRequest: It has none.
    """
    held = await _held(engine, source)
    if held is None:
        raise InvalidRequest(
            f"index [{source.index}] has no features yet, or an attach was not finished: run `es-ttc attach "
            f"{source.index}`"
        )
    if held.side:
        return Beside(engine, source, held.index, held.spec)
    return Inside(engine, source, held.spec)


async def fill_attached(
    engine: Engine,
    name: str,
    encoder: Encoder,
    *,
    options: FillOptions | None = None,
    report: Report | None = None,
) -> list[Filled]:
    """Bring the features of every index behind a name up to date, one after the other.

    Args:
        engine: The engine.
        name: An index, an alias or a data stream.
        encoder: The one that the features were made with.
        options: How to go about it.
        report: Told how it goes.

    Raises:
        InvalidRequest: There is no such index, one of them has no features, or a text cannot be read any more.
        EncoderMismatch: The features are those of another encoder.
        EngineError: The engine refuses, or the features were removed under way.
        EngineUnavailable: The engine stayed busy or absent.
    """
    filled = []
    for source in await sources_of(engine, name):
        target = await target_of(engine, source)
        if "inside" in source.meta:
            require_updatable(source)
        await require_readable(engine, source, target.spec.text_fields)
        filled.append(await fill(engine, source, target, encoder, options=options, report=report))
    return filled


async def spec_of(engine: Engine, sources: Sequence[Source]) -> IndexSpec | None:
    """Return the spec of the first of some indices that has features; None where none has."""
    for source in sources:
        held = await _held(engine, source)
        if held is not None:
            return held.spec
    return None


async def _holder(engine: Engine, source: Source) -> Holder:
    held = await _held(engine, source)
    if held is None:
        raise InvalidRequest(
            f"index [{source.index}] carries nothing of es-ttc: add it with `es-ttc attach {source.index}`, or make "
            "another index with `es-ttc index create`"
        )
    return held


async def _held(engine: Engine, source: Source) -> Holder | None:
    if source.meta:
        return Holder(source, source.index, IndexSpec.from_mapping(source.index, source.mapping))
    side = await serving_side(engine, source.index)
    if side is None:
        return None
    return Holder(source, side, IndexSpec.from_mapping(side, (await engine.mapping(side))[side]))
