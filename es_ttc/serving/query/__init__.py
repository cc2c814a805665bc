"""The `query` hook: `ttc` queries, each rewritten to one native query.

``rewriting`` rewrites one query: method, cache, deadline, fallback. ``corpus`` reads the data that rewriters get.
"""
