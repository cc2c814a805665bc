"""Reranking under a budget in the `rescore` hook, with documents outside the window for adaptive methods.

``rescoring`` is one search: strategy, deadline, fallback, summary. It uses ``walk`` (documents of the first pass and of
the graph that the caller may read), ``rerankers`` (those of the settings, and rescorers) and ``page`` (hits and scores
of the response).
"""
