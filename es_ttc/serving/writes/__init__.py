"""Writes to indices whose documents the gateway encodes: documents get the features that `es-ttc ingest` writes.

All other writes pass unchanged. `answers` answers requests; `targets` asks the engine what a written name is;
`encoding` adds features to documents, those of concurrent requests together; `bulk` rewrites bodies of many documents;
`post_write` encodes what the engine has just written, `on_demand` what searches have found.
"""
