"""Enrichment by a language model (SIRA): propose vocabulary, analyse it, filter it by document frequency, write it.

On the corpus side the model reads a document and proposes search vocabulary that the document lacks; the phrases that
pass the filters are written to a text field, ``ttc.enrichment``, which BM25 searches in addition to the user's fields.
"""
