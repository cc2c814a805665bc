"""Rescorers: pure scoring, arrays in and scores out; :mod:`es_ttc.rescorers.base` has the contract."""
