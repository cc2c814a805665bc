"""Indices and their features: mappings, ingest, and features for existing indices."""
