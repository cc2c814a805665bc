"""Where the features of a window's documents are: in the documents themselves, or in a side index."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from es_ttc.index.mappings.spec import ENCODER, HASH
from es_ttc.serving.features.keys import DocumentKey, document_keys, is_mark, single_values
from es_ttc.serving.features.known_marks import Attachment
from es_ttc.serving.features.skip_reasons import SkipReason

_NO_FIELDS: Mapping[str, Any] = {}


@dataclass(slots=True)
class FeatureLocations:
    """Where the features of a window's documents are.

    Attributes:
        keys: For each hit the key of its features, None for one without features that can be used.
        without: Places of hits without features of their own.
        skipped: Places of hits whose features are not used, with the reason.
        stale: Places of hits whose features are of an earlier text.
        sides: Concrete side indices of the window's indices, by the source's name; "" if no hit is in the side index.
        assumed: What earlier searches have read and this one must confirm: see :meth:`FeatureLocator.confirmed`.
    """

    keys: list[DocumentKey | None] = field(default_factory=list)
    without: list[int] = field(default_factory=list)
    skipped: dict[int, SkipReason] = field(default_factory=dict)
    stale: frozenset[int] = frozenset()
    sides: dict[str, str] = field(default_factory=dict)
    assumed: frozenset[Attachment] = frozenset()

    @property
    def known(self) -> list[DocumentKey]:
        """The keys of the features that can be used."""
        return [key for key in self.keys if key is not None]

    def skip(self, reason: SkipReason, applies: Callable[[DocumentKey], bool]) -> list[DocumentKey]:
        """Skip documents, in place; return the keys of the others."""
        for place, key in enumerate(self.keys):
            if key is not None and applies(key):
                self.keys[place], self.skipped[place] = None, reason
        return self.known

    def followed_by(self, others: "FeatureLocations") -> "FeatureLocations":
        """Return where the features of these hits and of some that follow them are."""
        first = len(self.keys)
        return FeatureLocations(
            [*self.keys, *others.keys],
            [*self.without, *(first + place for place in others.without)],
            self.skipped | {first + place: reason for place, reason in others.skipped.items()},
            self.stale.union(first + place for place in others.stale),
            others.sides | self.sides,
            self.assumed | others.assumed,
        )


def own_keys(hits: Sequence[Mapping[str, Any]]) -> FeatureLocations:
    """Return where features are that are stored in the documents themselves."""
    single = _with_single_values(hits)
    if single is not None:
        return FeatureLocations(document_keys([hit["_index"] for hit in hits], *single))
    own = FeatureLocations()
    add = own.keys.append
    for place, hit in enumerate(hits):
        fields = hit.get("fields") or _NO_FIELDS
        encoders, hashes = fields.get(ENCODER), fields.get(HASH)
        if not encoders or not hashes:
            own.without.append(place)
            add(None)
        elif len(encoders) > 1 or len(hashes) > 1 or not is_mark(hashes[0], encoders[0]):
            own.skipped[place] = SkipReason.MARKS
            add(None)
        else:
            add(DocumentKey(hit["_index"], encoders[0], hashes[0]))
    return own


def _with_single_values(hits: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]] | None:
    """Return the encoders and hashes of hits that all have one of each; None if any differs."""
    encoders, hashes = single_values(hits, ENCODER), single_values(hits, HASH)
    if encoders is None or hashes is None:
        return None
    if {*map(type, encoders), *map(type, hashes)} != {str}:
        return None
    return (encoders, hashes) if is_mark("".join(hashes), "".join(set(encoders))) else None
