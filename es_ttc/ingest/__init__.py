"""Documents into an index: readers, composing, encoding, bulk writing, dead letters, resuming."""

from es_ttc.ingest.compose import compose, content_hash
from es_ttc.ingest.dead_letters import DeadLetter, DeadLetterFile, DeadLetterList
from es_ttc.ingest.encode import DocumentFeatures, TokenFeatures, encode_documents
from es_ttc.ingest.pipeline import IngestOptions, Outcome, ingest
from es_ttc.ingest.readers import Documents, Inputs, open_source

__all__ = [
    "DeadLetter",
    "DeadLetterFile",
    "DeadLetterList",
    "DocumentFeatures",
    "Documents",
    "IngestOptions",
    "Inputs",
    "Outcome",
    "TokenFeatures",
    "compose",
    "content_hash",
    "encode_documents",
    "ingest",
    "open_source",
]
