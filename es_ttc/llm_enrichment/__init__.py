"""The place of corpus enrichment by a language model (SIRA): its prompts, its filter, its query. Nothing is here yet."""
