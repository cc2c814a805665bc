"""Enrichment by a language model (SIRA): proposed vocabulary, analysed, filtered by document frequency, written back.

On the corpus side the model reads a document and proposes search vocabulary that it lacks; what
survives the filters goes to a text field of its own, ``ttc.enrichment``, which BM25 searches beside the user's fields.
"""
