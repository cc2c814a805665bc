"""Reranking under a budget in the `rescore` hook, with documents outside the window for adaptive methods.

In the order of a search: ``filters`` (the parts of the query that every document must match), ``candidates`` (the
documents), ``neighbours`` (the graph, restricted to documents that the caller may read), ``rerankers`` (rerankers of
the settings and rescorers), ``ranking`` (one search: strategy, deadline, fallback), ``page`` (hits and scores of the
response).
"""
