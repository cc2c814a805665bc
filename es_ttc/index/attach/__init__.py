"""Features for an existing index: attach, fill, detach."""

from es_ttc.index.attach.detach import AttachedObjects, detach, traces_of
from es_ttc.index.attach.feature_locations import fill_attached
from es_ttc.index.attach.fill import FillResult
from es_ttc.index.attach.side_index import attach_beside, attach_on_demand

__all__ = [
    "AttachedObjects",
    "FillResult",
    "attach_beside",
    "attach_on_demand",
    "detach",
    "fill_attached",
    "traces_of",
]
