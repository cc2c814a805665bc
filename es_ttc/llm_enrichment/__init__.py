"""Corpus enrichment by a language model, and the one weighted BM25 query."""
