"""Ingest of documents: readers, text composition, encoding, bulk writing, dead letters, resuming."""

from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.ingest.dead_letters import DeadLetter, DeadLetterFile, DeadLetterList
from es_ttc.index.ingest.encode import DocumentFeatures, TokenFeatures, encode_documents
from es_ttc.index.ingest.pipeline import IngestOptions, IngestResult, ingest
from es_ttc.index.ingest.readers import Documents, Inputs, open_source

__all__ = [
    "DeadLetter",
    "DeadLetterFile",
    "DeadLetterList",
    "DocumentFeatures",
    "Documents",
    "IngestOptions",
    "IngestResult",
    "Inputs",
    "TokenFeatures",
    "compose",
    "content_hash",
    "encode_documents",
    "ingest",
    "open_source",
]
