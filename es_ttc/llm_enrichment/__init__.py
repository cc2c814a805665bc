"""The place of corpus enrichment by a language model (SIRA): prompts, filter, weighted query. Nothing is here yet."""
