"""All programs by name, with their costs in the paper and the features that they read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from es_ttc.rescorers.programs.frontier import (
    adaptgran,
    bidirzscore,
    consensusrocchio,
    covtriple,
    crossroundrrf,
    diversedualctx,
    fisherstability,
    graphcentrality,
    lexhybridrrf,
    momentumprog,
    negcontrastive,
    sentmaxsim,
)
from es_ttc.rescorers.programs.interface import Program
from es_ttc.vectors.chunks import GRANULARITIES, Granularity

REVERSED: Final = "reversed"
TOPIC: Final = "topic"
TEXTS: Final = "texts"
Reading = Granularity | Literal["reversed", "topic", "texts"]
"""What an index stores for programs beside whole documents: chunks, documents as queries, openings, texts."""

_EVERYTHING: tuple[Reading, ...] = (*GRANULARITIES, TOPIC, REVERSED)


@dataclass(frozen=True, slots=True)
class Entry:
    """One of the paper's frontier programs."""

    name: str
    title: str
    section: str
    program: Program
    cost: float  # the paper's cost ratio c
    passes: int = 0  # encoder calls for every query; 0 if everything is encoded at index time
    reads: tuple[Reading, ...] = _EVERYTHING  # the features that an index can store for it
    lexical: bool = True  # whether it has lexical channels
    calibrated: bool = False  # whether it uses statistics along queries

    @property
    def chunked(self) -> bool:
        """Whether it reads chunks of documents, and not whole documents alone."""
        return not {*self.reads} <= {REVERSED}

    @property
    def granularities(self) -> tuple[Granularity, ...]:
        """The kinds of chunks that it reads."""
        return tuple(name for name in GRANULARITIES if name in self.reads)


def _entry(title: str, section: str, program: Program, cost: float, **options: Any) -> Entry:
    """Return the entry of a program whose name is its title in lower case."""
    return Entry(title.lower(), title, section, program, cost, **options)


_ENTRIES = (
    _entry("BidirZScore", "B.1", bidirzscore, 1.2, reads=(REVERSED,), lexical=False, calibrated=True),
    _entry("SentMaxSim", "B.2", sentmaxsim, 2.2, reads=("sentences",), lexical=False),
    _entry("AdaptGran", "B.3", adaptgran, 2.7, reads=("paragraphs", "sentences"), lexical=False),
    _entry("CovTriple", "B.4", covtriple, 3.7, reads=(*GRANULARITIES, TOPIC), lexical=False),
    _entry("LexHybridRRF", "B.5", lexhybridrrf, 3.9),
    _entry("CrossRoundRRF", "B.6", crossroundrrf, 3.9),
    _entry("DiverseDualCtx", "B.7", diversedualctx, 5.6, passes=2),
    _entry("ConsensusRocchio", "B.8", consensusrocchio, 6.4, passes=3),
    _entry("NegContrastive", "B.9", negcontrastive, 7.2, passes=4),
    _entry("MomentumProg", "B.10", momentumprog, 9.8, passes=7),
    _entry("GraphCentrality", "B.11", graphcentrality, 12.2, passes=10),
    _entry("FisherStability", "B.12", fisherstability, 14.7, passes=13),
)

CATALOGUE: Mapping[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""The twelve frontier programs, in the order of the paper's costs."""
