"""SIRA's corpus enrichment: phrases proposed by a language model, and the jobs that write them into an index."""
