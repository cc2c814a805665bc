"""An index as the engine describes it: its mapping, its settings and its aliases, read in one request."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from es_ttc.engine.protocol import Engine, none_if_missing, path_of_one
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.attached import is_side_of, side_alias, side_pattern, source_of
from es_ttc.index.mappings.spec import ROOT, IndexSpec, own_meta, spec_of_own

_FLAT = {"flat_settings": "true"}
_HIDDEN_TOO = {**_FLAT, "expand_wildcards": "all", "ignore_unavailable": "true", "allow_no_indices": "true"}


NUMBER_TYPES = frozenset(
    {"byte", "double", "float", "half_float", "integer", "long", "scaled_float", "short", "unsigned_long"}
)
"""Types of fields of numbers."""


@dataclass(frozen=True, slots=True)
class Index:
    """One concrete index."""

    index: str
    uuid: str
    shards: int
    settings: Mapping[str, Any]
    mapping: Mapping[str, Any]
    aliases: frozenset[str]

    @classmethod
    def of(cls, name: str, described: Mapping[str, Any]) -> Self:
        """Return the index in the engine's response."""
        settings = described["settings"]
        shards = int(settings.get("index.number_of_shards", 1))  # Serverless does not tell
        return cls(
            name, settings["index.uuid"], shards, settings, described["mappings"], frozenset(described["aliases"])
        )

    @classmethod
    async def behind(cls, engine: Engine, name: str) -> list[Self]:
        """Return the concrete indices behind a name, an alias or a data stream; an error if there is none."""
        if any(sign in name for sign in "*,"):
            raise InvalidRequest(f"[{name}] may stand for many indices: name one index, alias or data stream")
        indices = await cls.named(engine, name)
        if not indices:
            raise no_index(engine, name)
        for index in indices:
            if index.side_of is not None:
                raise InvalidRequest(f"[{index.index}] is a side index of [{index.side_of}]: name that one")
        return indices

    @classmethod
    async def named(cls, engine: Engine, name: str) -> list[Self]:
        """Return the concrete indices behind a name, side indices too, sorted; none if there is no such name."""
        described = await none_if_missing(engine.request("GET", f"/{path_of_one(name)}", params=_FLAT))
        return [cls.of(concrete, each) for concrete, each in sorted((described or {}).items())]

    @classmethod
    async def find(cls, engine: Engine, name: str) -> Self | None:
        """Return the one concrete index behind a name or alias; None if there is no such name."""
        indices = await cls.named(engine, name)
        if len(indices) > 1:
            raise several(name, [index.index for index in indices])
        return indices[0] if indices else None

    @classmethod
    async def only(cls, engine: Engine, name: str) -> Self:
        """Return the one concrete index behind a name or alias; an error if there is none."""
        index = await cls.find(engine, name)
        if index is None:
            raise no_index(engine, name)
        return index

    @classmethod
    async def own(cls, engine: Engine, name: str) -> Self:
        """Return the one index behind a name or alias, which es-ttc created; an error for any other."""
        index = await cls.only(engine, name)
        spec_of_own(index.index, index.mapping)
        return index

    async def serving_side(self, engine: Engine) -> Self | None:
        """Return the side index that serves its features; None if nothing is attached, or not yet."""
        return next(iter(await self.named(engine, side_alias(self.index))), None)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metadata of es-ttc in its mapping; empty if there is none."""
        return own_meta(self.mapping)

    @property
    def side_of(self) -> str | None:
        """The index whose side index it is; None if it is none."""
        return source_of(self.mapping)

    @property
    def keeps_source(self) -> bool:
        """Whether documents have a `_source`, stored or synthetic."""
        mapped = self.mapping.get("_source", {})
        modes = (mapped.get("mode"), self.settings.get("index.mapping.source.mode"))
        return mapped.get("enabled") is not False and "disabled" not in modes

    @property
    def spec(self) -> IndexSpec:
        """Its spec."""
        return IndexSpec.from_mapping(self.index, self.mapping)

    @property
    def own_spec(self) -> IndexSpec:
        """Its spec; an error for an index that es-ttc did not create."""
        return spec_of_own(self.index, self.mapping)

    @property
    def leaf_fields(self) -> dict[str, str]:
        """The types of its fields by their full names."""
        return dict(_leaf_fields(self.mapping.get("properties", {})))

    @property
    def text_fields(self) -> list[str]:
        """The names of the text fields, sorted."""
        return sorted(name for name, kind in self.leaf_fields.items() if kind in ("text", "match_only_text", "keyword"))


async def put_own_meta(engine: Engine, index: str, key: str, value: Any) -> None:
    """Write one value into es-ttc's metadata in an index's present mapping; None removes it."""
    meta = (await engine.mapping(index))[index].get("_meta", {})
    ours = {name: present for name, present in meta.get(ROOT, {}).items() if name != key}
    await engine.put_meta(index, {**meta, ROOT: ours if value is None else {**ours, key: value}})


async def mappings_with_features(engine: Engine) -> dict[str, dict[str, Any]]:
    """Return the mappings of all visible indices with features in their own documents, by name, in order."""
    mappings = await engine.mapping("*")
    return {name: mapping for name, mapping in sorted(mappings.items()) if ROOT in mapping.get("_meta", {})}


def no_index(engine: Engine, name: str) -> InvalidRequest:
    """Return the error for a name of no index."""
    return InvalidRequest(f"there is no index [{name}] in {engine.name}")


def several(name: str, indices: Collection[str]) -> InvalidRequest:
    """Return the error for a name that matches several indices."""
    return InvalidRequest(f"[{name}] stands for {len(indices)} indices ({', '.join(sorted(indices))}): name one")


async def sides_of(engine: Engine, source: str) -> list[Index]:
    """Return all side indices of a source: the one in use, unfinished and abandoned ones."""
    found = await none_if_missing(engine.request("GET", f"/{side_pattern(source)}", params=_HIDDEN_TOO))
    sides = (Index.of(name, described) for name, described in sorted((found or {}).items()))
    return [side for side in sides if is_side_of(side.index, side.mapping, source)]


def _leaf_fields(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, mapping in properties.items():
        if "properties" in mapping:
            yield from _leaf_fields(mapping["properties"], f"{prefix}{name}.")
        if "type" in mapping:
            yield f"{prefix}{name}", mapping["type"]
