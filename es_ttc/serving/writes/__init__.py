"""Writes to indices whose documents are encoded on their way: documents get the features that `es-ttc ingest` writes.

All other writes pass unchanged. `bulk_lines` and `documents` are pure; `followed_indices` asks the engine which indices
are followed; `batches` encodes the documents of concurrent requests together; `bulk_body` and `stage` answer requests.
"""
