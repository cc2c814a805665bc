"""Writes to indices whose documents are encoded on their way: documents get the features that `es-ttc ingest` writes.

All other writes pass unchanged. `answers` answers requests; `followed_indices` asks the engine which indices are
followed; `encoding` adds features to documents, those of concurrent requests together; `bulk` rewrites bodies of many
documents; `afterwards` encodes what the engine has just written.
"""
