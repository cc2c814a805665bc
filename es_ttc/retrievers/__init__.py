"""Retrievers: methods that find documents in the whole corpus by kNN searches, independent of engine and HTTP.

A retriever is one small class (see :mod:`es_ttc.retrievers.base`) that a package names in the entry-point group
``es_ttc.retrievers``; the built-in ones register in the same way.
"""
