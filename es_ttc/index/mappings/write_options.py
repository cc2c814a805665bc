"""How documents that any client writes to an index are encoded and enriched, as kept in the index's mapping.

``es-ttc index pipeline`` writes the options below ``_meta.ttc.writes``. The ingest pipeline drops everything below
``ttc`` that a client sends, except from a write with the key: es-ttc's own writers send it as ``ttc.key``, and the
pipeline removes it before the document is stored. The key tells writers apart; it is no secret, and grants no right.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from es_ttc.index.mappings.spec import own_meta

Encode = Literal["now", "later"]

WRITES = "writes"  # its name below `_meta.ttc`
WRITE_KEY = "ttc.key"  # the field that a writer of es-ttc sends; it is mapped, neither indexed nor stored


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of an index whose documents are encoded and enriched after any client's write."""

    encode: Encode  # `now`: writes through the gateway are encoded on their way. `later`: workers encode all documents.
    enrich: bool  # whether workers also enrich documents by a language model
    key: str  # the value of `ttc.key` that the index's pipeline accepts; empty for features in a side index
    # Time limit of the plugin's processor for the gateway; None for the engine's own processors
    plugin_timeout: str | None = None

    @property
    def plugin(self) -> bool:
        """Whether the index's pipeline is the plugin's processor."""
        return self.plugin_timeout is not None

    def as_meta(self) -> dict[str, Any]:
        """Return the JSON-ready value of ``_meta.ttc.writes``."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Self | None:
        """Return the options in an index's mapping; None if writes to it are not followed."""
        found = own_meta(mapping).get(WRITES)
        if found is None:
            return None
        return cls(found["encode"], bool(found["enrich"]), found["key"], found.get("plugin_timeout"))
