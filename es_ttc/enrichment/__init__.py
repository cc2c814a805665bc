"""SIRA's corpus enrichment: phrases proposed by a language model, and the jobs that bring them into an index."""
