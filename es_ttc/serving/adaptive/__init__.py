"""Reranking under a budget in the `rescore` hook: the window is where a walk begins, and need not be where it ends.

From the request to the answer: ``conditions`` (what of the caller's query binds every document), ``documents`` (those
that the caller has been shown), ``neighbourhood`` (the graph, as far as he may see it), ``rerankers`` (who judges),
``walking`` (one search: strategy, deadline, fallback), ``page`` (hits and scores of the answer).
"""
