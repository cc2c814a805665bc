"""The parameters of NNN rescoring.

The defaults come from 800 train queries of ToolLens (seeded sample, all-MiniLM-L6-v2, windows of 100): l1 is the
least of .1, .15, .2, .25 whose Recall@5 and Comp@5 are within two standard errors of dense retrieval's (.277 and .076
against .277 and .080), while the first five resemble each other less (mean cosine .687 against .698). At this l1 all
three hardly depend on l2 from 0 to 1; .1 keeps near-duplicates apart and the solution unique. No setting did better
than dense there: encoders that were trained for a collection, and other collections, want values of their own.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from pydantic import Field, model_validator

from es_ttc.rescorers.base import Params

DEFAULT_L1 = 0.2
DEFAULT_L2 = 0.1


class NnnParams(Params):
    """Parameters of NNN rescoring."""

    GRID: ClassVar[Mapping[str, Sequence[float]]] = {
        "l1": (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3),
        "l2": (0.0, 0.01, 0.05, 0.1, 0.3, 1.0, 3.0),
    }

    l1: float = Field(
        DEFAULT_L1,
        ge=0,
        le=1,
        description="L1 penalty: a document is selected only if its cosine with the query's residual exceeds this. "
        "Greater values select fewer documents. The paper's L2-Fix has 0.",
    )
    l2: float = Field(
        DEFAULT_L2,
        ge=0,
        le=1000,
        description="L2 penalty: distributes weight among similar documents. Greater values select more of them "
        "together, in an order closer to that of `dense`. The paper's L1-Fix has 0.",
    )
    documents: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Number of documents to select, in place of `l1`: `l1` decreases until this many are selected, or "
        "until it is 0.",
    )

    @model_validator(mode="after")
    def _one_stopping_rule(self) -> Self:
        if self.documents is not None and self.l1 != DEFAULT_L1:
            raise ValueError("[documents] chooses l1 by itself: set one of the two")
        return self
