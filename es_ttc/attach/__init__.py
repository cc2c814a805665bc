"""Features for an index that was there before: attach, fill, detach."""

from es_ttc.attach.beside import attach_beside
from es_ttc.attach.detach import Traces, detach, traces_of
from es_ttc.attach.fill import Filled, FillOptions
from es_ttc.attach.find import fill_attached
from es_ttc.attach.inside import attach_inside

__all__ = [
    "FillOptions",
    "Filled",
    "Traces",
    "attach_beside",
    "attach_inside",
    "detach",
    "fill_attached",
    "traces_of",
]
