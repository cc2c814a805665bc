"""Ingest: documents in, encoded and written through the bulk API."""
