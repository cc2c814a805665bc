"""Reranking under a budget in the `rescore` hook, with documents outside the window for adaptive methods.

``ranking`` is one search: strategy, deadline, fallback, response. It uses ``documents`` (those of the first pass and
others that the engine returned to this caller), ``neighbours`` (the graph, restricted to such documents), ``rerankers``
(those of the settings, and rescorers) and ``page`` (hits and scores of the response).
"""
