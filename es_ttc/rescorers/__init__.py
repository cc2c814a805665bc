"""Rescorers: pure scoring, arrays in and scores out.

A rescorer is one small class (see :mod:`es_ttc.rescorers.base`) that a package names in the entry-point group
``es_ttc.rescorers``; the built-in ones register in the same way.
"""
