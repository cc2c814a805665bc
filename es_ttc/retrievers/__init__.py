"""Retrievers: what finds documents in the whole corpus by rounds of kNN searches, pure of engine and HTTP.

A retriever is one small class (see :mod:`es_ttc.retrievers.base`) that a package names in the entry-point group
``es_ttc.retrievers``; the built-in ones register in the same way.
"""
